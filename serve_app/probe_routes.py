"""The routes for load balancers and operators: health, readiness, figures, version."""

import asyncio
from typing import Literal

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from starlette.responses import JSONResponse, Response

from replicas.errors import EyrieError
from serve_app import __version__
from serve_app.model_routes import awaited
from serve_app.route_errors import answered
from serve_app.served_models import ServedModel, ServedModels

PROBE_TIMEOUT_S = 2.0
"""A replica that does not answer within it is busy: its health is for Serve's own checks to judge."""

State = Literal["ok", "busy", "idle", "starting", "down"]


class ProbeRoutes:
    """Their handlers."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._seen: set[str] = set()
        """Models that have answered a probe: until then silence means that they are starting."""

    async def health(self) -> JSONResponse:
        """200 if each model works, though it may be busy; 503 while one is starting or down."""
        return await self._states({"starting", "down"})

    async def ready(self) -> JSONResponse:
        """200 if each model takes a request now; 503 also while one is busy, so that others get the next one."""
        return await self._states({"starting", "down", "busy"})

    async def version(self) -> dict[str, str]:
        return {"version": __version__}

    async def stats(self) -> Response:
        """Figures of one replica of each model, as of its last step: requests running and waiting, free KV blocks."""
        return await answered(self._stats())

    async def _stats(self) -> Response:
        return JSONResponse({model.settings.id: await model.client.stats() for model in self._models})

    async def _states(self, bad: set[State]) -> JSONResponse:
        models = list(self._models)
        states = await asyncio.gather(*(self._probe(model) for model in models))
        is_good = bad.isdisjoint(states)
        named = {model.settings.id: state for model, state in zip(models, states, strict=True)}
        return JSONResponse({"status": "ok" if is_good else "unavailable", "models": named}, 200 if is_good else 503)

    async def _probe(self, model: ServedModel) -> State:
        if model.settings.autoscaling.min_replicas == 0:
            return "idle"  # A call would start a replica: a load balancer's probes would keep it alive for ever.
        try:
            await asyncio.wait_for(awaited(model.client.stats()), PROBE_TIMEOUT_S)
        except (asyncio.TimeoutError, BackPressureError):
            return "busy" if model.settings.id in self._seen else "starting"
        except (EyrieError, RayError, RayServeException):
            return "down"
        self._seen.add(model.settings.id)
        return "ok"
