"""The Serve application: one deployment a model, and the ingress before them.

serve run configs/eagle3.yaml, whose import_path is serve_app.app:build.
"""

import logging
import os
from typing import Any, cast

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from serve_app.api_keys import access_of
from serve_app.engine_protocol import EngineBuilder, build_served_engine
from serve_app.ingress import Ingress
from serve_app.replica_deployment import ModelReplica
from serve_app.settings import INGRESS_DEPLOYMENT, INGRESS_DRAIN_MARGIN_S, AnyModelSettings, AppSettings

logger = logging.getLogger("ray.serve")
"""The one that Serve shows of the process in which it builds."""

HEALTH_CHECK_TIMEOUT_S = 30.0
"""An event loop that does not answer for so long, three times running, is stuck; Serve replaces the replica."""
DEVICE_VARIABLE = "EYRIE_DEVICE"


def build(args: AppSettings) -> Application:
    """What Serve calls with the YAML's args, of which it makes AppSettings: ConfigError has one line a problem.

    EYRIE_DEVICE puts every model on that device instead: a deployment for NeuronCores is tried on CPUs that way.
    """
    device = os.environ.get(DEVICE_VARIABLE)
    if not device:
        return build_application(args)
    moved = args.on_device(device)
    for written, model in zip(args.models, moved.models, strict=True):
        logger.info(
            "%s=%s: model %s runs on %s instead of %s, ranks: %d",
            *(DEVICE_VARIABLE, device, model.id, model.device, written.device, model.tensor_parallel_size),
        )
    return build_application(moved)


def build_application(settings: AppSettings, build_engine: EngineBuilder = build_served_engine) -> Application:
    """The application of `settings`, whose replicas make their engines with `build_engine`."""
    handles = {model.id: _model_deployment(model, settings, build_engine) for model in settings.models}
    ingress = settings.ingress
    deployment = _deployment(cast("Any", serve).ingress()(Ingress))
    return deployment.options(
        name=INGRESS_DEPLOYMENT,
        num_replicas=ingress.num_replicas,
        max_ongoing_requests=ingress.max_ongoing_requests,
        ray_actor_options={"num_cpus": ingress.num_cpus},
        # A lone one stays until the next is there, or requests would wait in the proxy; several go one after another,
        # and so need no CPUs beside those that they have.
        max_surge_percent=100 if ingress.num_replicas == 1 else 0,
        **_operation(settings, settings.drain_s + INGRESS_DRAIN_MARGIN_S),
    ).bind(settings, handles, access_of(settings))


def _model_deployment(model: AnyModelSettings, settings: AppSettings, build_engine: EngineBuilder) -> Application:
    deployment = _deployment(ModelReplica)
    return deployment.options(
        name=model.deployment_name,
        autoscaling_config=model.autoscaling.serve_config(model.max_num_seqs),
        request_router_config=RequestRouterConfig(**model.routing.serve_config()),
        max_ongoing_requests=model.num_ongoing_requests,
        max_queued_requests=model.max_queued_requests,
        ray_actor_options=model.ray_actor_options,
        **model.placement_options,
        **_operation(settings, settings.drain_s),
    ).bind(model, build_engine)


def _operation(settings: AppSettings, drain_s: float) -> dict[str, Any]:
    """Options of every deployment: overload, health, and the end of a replica (docs/decisions/0022-faults.md)."""
    return {
        "backpressure_config": {"status_code": 429, "retry_after_s": float(settings.retry_after_s)},
        "graceful_shutdown_timeout_s": drain_s,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": settings.health_check_period_s,
        "health_check_timeout_s": HEALTH_CHECK_TIMEOUT_S,
    }


def _deployment(kind: Any) -> Any:
    # Serve's decorators leave their types open.
    return cast("Any", serve).deployment(kind)
