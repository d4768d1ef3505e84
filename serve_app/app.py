"""The Serve application: one deployment a model, and the ingress before them.

serve run configs/eagle3.yaml, whose import_path is serve_app.app:build.
"""

import os
from typing import Any, cast

from ray import serve
from ray.serve import Application

from serve_app.api_keys import access_of
from serve_app.engine_protocol import EngineBuilder, build_served_engine
from serve_app.ingress import Ingress
from serve_app.replica_deployment import ModelReplica
from serve_app.settings import INGRESS_DEPLOYMENT, AnyModelSettings, AppSettings

DEVICE_VARIABLE = "EYRIE_DEVICE"


def build(args: AppSettings) -> Application:
    """What Serve calls with the YAML's args, of which it makes AppSettings: ConfigError has one line a problem.

    EYRIE_DEVICE puts every model on that device instead: a deployment for NeuronCores is tried on CPUs that way.
    """
    device = os.environ.get(DEVICE_VARIABLE)
    return build_application(args.on_device(device) if device else args)


def build_application(settings: AppSettings, build_engine: EngineBuilder = build_served_engine) -> Application:
    """The application of `settings`, whose replicas make their engines with `build_engine`."""
    overload = {"status_code": 429, "retry_after_s": float(settings.retry_after_s)}
    handles = {model.id: _model_deployment(model, overload, build_engine) for model in settings.models}
    ingress = settings.ingress
    deployment = _deployment(cast("Any", serve).ingress()(Ingress))
    return deployment.options(
        name=INGRESS_DEPLOYMENT,
        num_replicas=ingress.num_replicas,
        max_ongoing_requests=ingress.max_ongoing_requests,
        backpressure_config=overload,
        ray_actor_options={"num_cpus": ingress.num_cpus},
    ).bind(settings, handles, access_of(settings))


def _model_deployment(model: AnyModelSettings, overload: dict[str, Any], build_engine: EngineBuilder) -> Application:
    deployment = _deployment(ModelReplica)
    return deployment.options(
        name=model.deployment_name,
        autoscaling_config=model.autoscaling.model_dump(exclude_none=True),
        max_ongoing_requests=model.num_ongoing_requests,
        max_queued_requests=model.max_queued_requests,
        backpressure_config=overload,
        ray_actor_options=model.ray_actor_options,
        **model.placement_options,
    ).bind(model, build_engine)


def _deployment(kind: Any) -> Any:
    # Serve's decorators leave their types open.
    return cast("Any", serve).deployment(kind)
