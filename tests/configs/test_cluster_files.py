"""Every file under configs/cluster, against the schema or the parser of what reads it."""

import ipaddress
import json
import re
from pathlib import Path
from typing import Any

import crossplane
import pytest
import ray
import yaml
from crossplane.analyzer import DIRECTIVES
from ray.autoscaler._private.util import prepare_config, validate_config

from replicas.devices.neuron_hardware import NEURON_CORES
from serve_app.serve_config import load_settings
from serve_app.settings import AppSettings
from tests.reference.kuberay import RayService

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
CLUSTER = CONFIGS / "cluster"
SERVE = CONFIGS / "inf2_eagle3.yaml"


@pytest.fixture(scope="module")
def served() -> AppSettings:
    return load_settings(SERVE)


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    return {item["kind"]: item for item in yaml.safe_load_all((CLUSTER / "kuberay_inf2.yaml").read_text())}


@pytest.fixture(scope="module")
def ray_up() -> dict[str, Any]:
    return yaml.safe_load((CLUSTER / "ray_up_inf2.yaml").read_text())


def test_every_file_is_known_here() -> None:
    assert sorted(path.name for path in CLUSTER.iterdir()) == ["kuberay_inf2.yaml", "nginx.conf", "ray_up_inf2.yaml"]


def test_every_node_runs_serve_as_make_serve_does(ray_up: dict[str, Any], manifests: dict[str, Any]) -> None:
    makefile = (CONFIGS.parent / "Makefile").read_text()
    wanted = set(re.findall(r"RAY_SERVE_[A-Z_]+=\d", makefile))
    assert len(wanted) == 5
    for key in ("head", "worker"):
        [start] = [command for command in ray_up[f"{key}_start_ray_commands"] if "ray start" in command]
        assert wanted <= set(start.split())
    cluster = manifests["RayService"]["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        [container] = group["template"]["spec"]["containers"]
        assert {f"{one['name']}={one['value']}" for one in container["env"]} == wanted
    document = (CONFIGS.parent / "docs" / "operations.md").read_text()
    assert {f"`{name}` | {value}" for name, value in (item.split("=") for item in wanted)} <= set(
        re.findall(r"`RAY_SERVE_[A-Z_]+` \| \d", document)
    )


class TestServeFile:
    def test_it_is_the_published_pair_on_one_chip(self, served: AppSettings) -> None:
        [model] = served.models
        assert model.model == "meta-llama/Llama-3.1-8B-Instruct"
        assert model.speculative_config is not None
        assert model.speculative_config.model == "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
        assert (model.device, model.dtype, model.tensor_parallel_size) == ("neuron", "bfloat16", 2)
        assert model.ray_actor_options["resources"] == {"neuron_cores": 2}

    def test_the_load_balancers_wait_longer_than_the_proxy_and_the_proxy_than_the_application(
        self, served: AppSettings, manifests: dict[str, Any]
    ) -> None:
        proxy = yaml.safe_load(SERVE.read_text())["http_options"]["request_timeout_s"]
        assert served.request_timeout_s is not None
        attributes = manifests["Ingress"]["metadata"]["annotations"]
        idle = attributes["alb.ingress.kubernetes.io/load-balancer-attributes"]
        assert served.request_timeout_s < proxy < int(idle.removeprefix("idle_timeout.timeout_seconds="))


class TestRayUp:
    def test_it_fits_ray_s_own_schema(self, ray_up: dict[str, Any]) -> None:
        validate_config(prepare_config(json.loads(json.dumps(ray_up))))

    def test_a_key_that_ray_does_not_know_would_fail(self, ray_up: dict[str, Any]) -> None:
        with pytest.raises(Exception, match="was unexpected"):
            validate_config(prepare_config(json.loads(json.dumps(ray_up)) | {"min_worker": 2}))

    def test_a_node_offers_the_cores_that_its_instance_has(self, ray_up: dict[str, Any], served: AppSettings) -> None:
        inf2 = ray_up["available_node_types"]["inf2"]
        cores = NEURON_CORES[inf2["node_config"]["InstanceType"]]
        assert inf2["resources"]["neuron_cores"] == cores
        [start] = [command for command in ray_up["worker_start_ray_commands"] if "ray start" in command]
        assert f"""--resources='{{"neuron_cores": {cores}}}'""" in start
        [model] = served.models
        replicas_a_node = cores // model.tensor_parallel_size
        assert inf2["min_workers"] * replicas_a_node >= model.autoscaling.min_replicas
        assert inf2["max_workers"] * replicas_a_node >= model.autoscaling.max_replicas
        cpus = model.resources.num_cpus * replicas_a_node + served.ingress.num_cpus * served.ingress.num_replicas
        assert cpus <= inf2["resources"]["CPU"]

    def test_nothing_is_open_by_default(self, ray_up: dict[str, Any]) -> None:
        assert ray_up["provider"]["use_internal_ips"] is True
        for kind in ray_up["available_node_types"].values():
            # Without groups of one's own Ray opens port 22 to 0.0.0.0/0.
            assert kind["node_config"]["SecurityGroupIds"]
            assert kind["node_config"]["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
            assert kind["node_config"]["MetadataOptions"] == {"HttpTokens": "required"}
        starts = [c for key in ("head", "worker") for c in ray_up[f"{key}_start_ray_commands"] if "ray start" in c]
        assert len(starts) == 2
        assert all("RAY_AUTH_MODE=token" in command for command in starts)
        assert "--dashboard-host=127.0.0.1" in starts[0]
        assert "~/.ray/auth_token" in ray_up["file_mounts"]


class TestKubeRay:
    def test_it_has_only_fields_that_the_crd_has(self, manifests: dict[str, Any]) -> None:
        assert RayService.model_validate(manifests["RayService"]).spec.ray_cluster_config.ray_version == ray.__version__

    def test_its_application_is_that_of_the_serve_file(self, manifests: dict[str, Any]) -> None:
        text = manifests["RayService"]["spec"]["serveConfigV2"]
        assert yaml.safe_load(text) == yaml.safe_load(SERVE.read_text())

    def test_a_pod_has_the_cores_of_a_replica(self, manifests: dict[str, Any], served: AppSettings) -> None:
        [group] = RayService.model_validate(manifests["RayService"]).spec.ray_cluster_config.worker_group_specs
        [container] = group.template.spec.containers
        [model] = served.models
        limits = container.resources.limits
        assert int(limits["aws.amazon.com/neuroncore"]) == model.tensor_parallel_size
        assert limits["aws.amazon.com/neuroncore"] == container.resources.requests["aws.amazon.com/neuroncore"]
        assert (group.min_replicas, group.max_replicas) == (
            model.autoscaling.min_replicas,
            model.autoscaling.max_replicas,
        )
        assert served.request_timeout_s is not None
        assert (group.template.spec.termination_grace_period_seconds or 0) > served.request_timeout_s

    def test_pods_are_restricted_and_ray_asks_for_its_token(self, manifests: dict[str, Any]) -> None:
        cluster = RayService.model_validate(manifests["RayService"]).spec.ray_cluster_config
        assert cluster.auth_options == {"mode": "token"}
        for group in (cluster.head_group_spec, *cluster.worker_group_specs):
            for container in group.template.spec.containers:
                context = container.security_context
                assert context["runAsNonRoot"] is True
                assert context["allowPrivilegeEscalation"] is False

    def test_only_port_8000_is_open_to_the_network(self, manifests: dict[str, Any]) -> None:
        inside, outside = manifests["NetworkPolicy"]["spec"]["ingress"]
        assert not any("ipBlock" in source for source in inside["from"])
        assert [port["port"] for port in outside["ports"]] == [8000]
        assert ipaddress.ip_network(outside["from"][0]["ipBlock"]["cidr"]).is_private

    def test_the_load_balancer_is_internal_and_has_the_api_alone(self, manifests: dict[str, Any]) -> None:
        ingress = manifests["Ingress"]
        assert ingress["metadata"]["annotations"]["alb.ingress.kubernetes.io/scheme"] == "internal"
        assert json.loads(ingress["metadata"]["annotations"]["alb.ingress.kubernetes.io/listen-ports"]) == [
            {"HTTPS": 443}
        ]
        [path] = ingress["spec"]["rules"][0]["http"]["paths"]
        name = manifests["RayService"]["metadata"]["name"]
        # KubeRay's name of a RayService's service.
        assert path["backend"]["service"] == {"name": f"{name}-serve-svc", "port": {"number": 8000}}
        assert path["path"] == "/v1"


class TestNginx:
    @pytest.fixture
    def directives(self) -> list[dict[str, Any]]:
        parsed: Any = crossplane.parse(
            str(CLUSTER / "nginx.conf"), single=True, check_ctx=True, check_args=True, comments=False
        )
        assert (parsed["status"], parsed["errors"]) == ("ok", [])
        found = parsed["config"][0]["parsed"]
        # The lines of a map are patterns; everything else must be a directive that nginx has.
        [patterns] = self.all_of(found, "map")
        names = {item["directive"] for item in self.everything(found)} - {
            line["directive"] for line in patterns["block"]
        }
        assert names <= DIRECTIVES.keys()
        return found

    @staticmethod
    def everything(directives: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*directives, *(inner for item in directives for inner in TestNginx.everything(item.get("block", [])))]

    @staticmethod
    def all_of(directives: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
        return [item for item in TestNginx.everything(directives) if item["directive"] == name]

    def test_streams_pass_as_they_come_and_wait_longer_than_the_proxy(self, directives: list[dict[str, Any]]) -> None:
        locations = {" ".join(item["args"]): item["block"] for item in self.all_of(directives, "location")}
        assert locations.keys() == {"= /health", "/v1/", "@once_more", "/"}
        # What the locations inherit: none says otherwise.
        [server] = [item for item in self.all_of(directives, "server") if "block" in item]
        api = {item["directive"]: item["args"] for item in server["block"]}
        assert not {item["directive"] for block in locations.values() for item in block} & (
            {name for name in api if name.startswith("proxy_")}
        )
        assert api["proxy_buffering"] == ["off"]
        assert api["error_page"] == ["500", "=", "@once_more"]
        assert "http_500" not in api["proxy_next_upstream"]
        proxy = yaml.safe_load(SERVE.read_text())["http_options"]["request_timeout_s"]
        assert int(api["proxy_read_timeout"][0].removesuffix("s")) > proxy
        assert [item["args"] for item in locations["/"]] == [["404"]]

    def test_a_request_needs_a_key_and_tls(self, directives: list[dict[str, Any]]) -> None:
        [listen] = self.all_of(directives, "listen")
        assert listen["args"] == ["443", "ssl"]
        [condition] = self.all_of(directives, "if")
        assert condition["args"] == ["$is_known", "=", "0"]
        assert condition["block"][0]["args"] == ["401"]
