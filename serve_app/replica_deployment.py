"""One replica: an engine, and the translation between jobs and token ids. Serve makes a deployment of it, a model."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict

from replicas.errors import RequestError
from replicas.request import GenerationRequest, RequestOutput
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.engine_protocol import AsyncEngine, EngineBuilder, build_own_engine
from serve_app.generation import ChatMessage, Delta, GenerationJob, ScoredToken
from serve_app.k_policy import k_policy_of
from serve_app.settings import ModelSettings
from serve_app.token_scores import TokenScores


class ModelReplica:
    """Holds the engine of one model; its methods run on the replica's event loop and never block it for long."""

    def __init__(self, settings: ModelSettings, build_engine: EngineBuilder = build_own_engine) -> None:
        # Here and not in the builder: this node's folders count, not those of the node that builds the application.
        config = with_local_checkpoints(settings.engine)
        speculative = config.speculative_config
        self._k = 0 if speculative is None else speculative.num_speculative_tokens
        self._engine: AsyncEngine = build_engine(config, k_policy_of(settings))

    async def generate(self, job: GenerationJob) -> AsyncGenerator[Delta, None]:
        """One delta a step, the last with a finish_reason. Closing or cancelling it aborts the request.

        Raises RequestError, whose param is the field that the prompt came in, and EngineDeadError.
        """
        is_chat = bool(job.prompt) and isinstance(job.prompt[0], ChatMessage)
        k = min(self._k, cap) if (cap := job.sampling.num_speculative_tokens) is not None else self._k
        scores = TokenScores(self._engine.codec)
        try:
            request = GenerationRequest(job.request_id, self._token_ids(job), job.sampling)
            async with aclosing(self._engine.generate(request)) as outputs:
                async for output in outputs:
                    yield _delta(output, k, scores.of(output))
        except RequestError as error:
            param = "messages" if is_chat and error.param in (None, "prompt") else error.param or "prompt"
            raise RequestError(error.message, param, error.code) from None

    async def stats(self) -> dict[str, float]:
        """The engine's figures. Raises EngineDeadError if it is dead."""
        self._engine.check_health()
        return asdict(self._engine.stats())

    async def check_health(self) -> None:
        """Serve calls it, and replaces the replica when it raises."""
        self._engine.check_health()

    def __del__(self) -> None:
        # Serve's hook for the end of a replica. A constructor that failed has left no engine.
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.shutdown()

    def _token_ids(self, job: GenerationJob) -> tuple[int, ...]:
        codec = self._engine.codec
        if isinstance(job.prompt, str):
            return tuple(codec.encode(job.prompt))
        turns = [turn for turn in job.prompt if isinstance(turn, ChatMessage)]
        if turns:
            return tuple(codec.encode_chat([{"role": turn.role, "content": turn.content} for turn in turns]))
        token_ids = tuple(part for part in job.prompt if isinstance(part, int))
        # The embedding would fail on it, and the whole engine with it.
        wrong = next((token_id for token_id in token_ids if not 0 <= token_id < codec.vocab_size), None)
        if wrong is not None:
            raise RequestError(f"prompt holds the token id {wrong}; allowed: 0 to {codec.vocab_size - 1}", "prompt")
        return token_ids


def _delta(output: RequestOutput, k: int, scores: tuple[ScoredToken, ...] | None) -> Delta:
    acceptance = output.acceptance
    return Delta(
        output.text,
        output.num_prompt_tokens,
        output.num_output_tokens,
        k,
        acceptance.steps,
        acceptance.drafted,
        acceptance.accepted,
        acceptance.mean_acceptance_length,
        output.finish_reason,
        scores,
        num_cached_tokens=output.num_cached_tokens,
    )
