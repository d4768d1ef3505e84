"""The fields of KubeRay's CRD `rayservices.ray.io/v1` (1.6) that a manifest here may use; any other is a mistake.

Field names from the published CRD. Pod templates: the fields of Kubernetes' PodSpec that are used.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class Resources(_Fields):
    requests: dict[str, str]
    limits: dict[str, str]


class Container(_Fields):
    name: str
    image: str
    ports: list[dict[str, str | int]] = []
    env: list[dict[str, Any]] = []
    env_from: list[dict[str, Any]] = []
    resources: Resources
    security_context: dict[str, Any]
    volume_mounts: list[dict[str, str]] = []


class PodSpec(_Fields):
    containers: list[Container]
    service_account_name: str | None = None
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, str]] = []
    termination_grace_period_seconds: int | None = None
    volumes: list[dict[str, Any]] = []


class PodTemplate(_Fields):
    metadata: dict[str, Any] = {}
    spec: PodSpec


class HeadGroup(_Fields):
    ray_start_params: dict[str, str]
    template: PodTemplate
    service_type: str | None = None
    head_service: dict[str, Any] | None = None
    enable_ingress: bool | None = None
    resources: dict[str, str] = {}
    labels: dict[str, str] = {}


class WorkerGroup(_Fields):
    group_name: str
    replicas: int
    min_replicas: int
    max_replicas: int
    num_of_hosts: int = 1
    idle_timeout_seconds: int | None = None
    ray_start_params: dict[str, str]
    template: PodTemplate
    scale_strategy: dict[str, Any] | None = None
    suspend: bool | None = None
    resources: dict[str, str] = {}
    labels: dict[str, str] = {}


class RayCluster(_Fields):
    ray_version: str
    auth_options: dict[str, Any] | None = None
    enable_in_tree_autoscaling: bool | None = None
    autoscaler_options: dict[str, Any] | None = None
    gcs_fault_tolerance_options: dict[str, Any] | None = None
    head_group_spec: HeadGroup
    worker_group_specs: list[WorkerGroup]
    head_service_annotations: dict[str, str] = {}
    upgrade_strategy: dict[str, Any] | None = None
    managed_by: str | None = None
    suspend: bool | None = None


class RayServiceSpec(_Fields):
    serve_config_v2: str
    ray_cluster_config: RayCluster
    serve_service: dict[str, Any] | None = None
    upgrade_strategy: dict[str, Any] | None = None
    exclude_head_pod_from_serve_svc: bool | None = None
    ray_cluster_deletion_delay_seconds: int | None = None
    service_unhealthy_second_threshold: int | None = None
    deployment_unhealthy_second_threshold: int | None = None
    managed_by: str | None = None
    suspend: bool | None = None


class RayService(_Fields):
    api_version: str
    kind: str
    metadata: dict[str, Any]
    spec: RayServiceSpec
