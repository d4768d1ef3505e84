"""OpenTelemetry, if the environment configures an exporter: otherwise nothing of it is imported, and nothing done.

The standard variables say where traces go (docs/metrics.md). The provider is our own, not the process's global one:
Serve sets that when its own tracing is on, and Ray uses the SDK for its metrics.
"""

import logging
import os
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OUR_PROTOCOL = "http/protobuf"
EXPORTER_PACKAGE = "opentelemetry.exporter.otlp.proto.http"


def is_configured(environment: Mapping[str, str]) -> bool:
    """True if traces shall go somewhere: OTEL_TRACES_EXPORTER is otlp, or unset and an endpoint is named."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER")
    if exporter in (None, ""):
        return any(environment.get(name) for name in ENDPOINTS)
    if exporter not in ("otlp", "none"):
        logger.warning("OTEL_TRACES_EXPORTER=%s: no traces; allowed: otlp, none", exporter)
    return exporter == "otlp"


def build_provider(part: str, environment: Mapping[str, str] = os.environ) -> "TracerProvider | None":
    """What makes spans in this process, a `part` of the application; None if nothing is configured or can be sent.

    That is logged and no error: a variable of the whole machine must not keep a model from being served.
    """
    if not is_configured(environment):
        return None
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), OUR_PROTOCOL)
    if protocol != OUR_PROTOCOL:
        logger.warning("OTEL_EXPORTER_OTLP_PROTOCOL=%s: no traces; allowed: %s", protocol, OUR_PROTOCOL)
        return None
    if find_spec("opentelemetry") is None or _is_missing(EXPORTER_PACKAGE):
        logger.warning("traces are configured, but there are none: pip install 'eyrie[tracing]' is missing")
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return provider_of(part, BatchSpanProcessor(OTLPSpanExporter()))


def provider_of(part: str, processor: "SpanProcessor") -> "TracerProvider":
    """Spans of `part` for `processor`. OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_TRACES_SAMPLER hold."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider

    from serve_app import __version__

    ours = Resource.create({"service.name": "eyrie", "service.version": __version__, "eyrie.part": part})
    # What the environment says wins over ours.
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(processor)
    return provider


def tracer_of(provider: "TracerProvider") -> "Tracer":
    """Ours."""
    return provider.get_tracer("eyrie")


def unix_ns(moment: float) -> int:
    """Of `moment`, which was on time.perf_counter."""
    return time.time_ns() - round(1e9 * (time.perf_counter() - moment))


def _is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:
        return True
