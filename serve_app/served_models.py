"""The models of the application, as the routes see them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from replicas.errors import RequestError
from serve_app.metric_definitions import Metric
from serve_app.metric_recorder import Recorder
from serve_app.model_client import ModelClient
from serve_app.openai_responses import Model, ModelSpeculation
from serve_app.settings import AnyModelSettings


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model, and how to reach its replicas."""

    settings: AnyModelSettings
    client: ModelClient
    created: int
    recorder: Recorder | None = None
    """Of the ingress's own metrics; None: nobody reads them."""

    def count(self, metric: Metric) -> None:
        """One more."""
        if self.recorder is not None:
            self.recorder.add(metric, 1)

    @property
    def method(self) -> str | None:
        """None without a drafter."""
        speculative = self.settings.speculative_config
        return None if speculative is None else speculative.method

    def card(self) -> Model:
        """Its entry in /v1/models."""
        speculative = self.settings.speculative_config
        return Model(
            id=self.settings.id,
            created=self.created,
            max_model_len=self.settings.max_model_len,
            speculation=speculative
            and ModelSpeculation(method=speculative.method, num_speculative_tokens=speculative.num_speculative_tokens),
        )


class ServedModels:
    """All of them, by id."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = dict(models)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def named(self, model_id: str | None) -> ServedModel:
        """The one with this id; without an id the only one. Raises RequestError."""
        known = ", ".join(self._models)
        if model_id is None:
            if len(self._models) > 1:
                raise RequestError(f"required, as several models are served: {known}", "model")
            return next(iter(self._models.values()))
        model = self._models.get(model_id)
        if model is None:
            raise RequestError(f"the model {model_id!r} does not exist; allowed: {known}", "model", "model_not_found")
        return model
