"""One replica: an engine, and the translation between jobs and token ids. Serve makes a deployment of it, a model."""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

from replicas.errors import EngineDeadError, RequestError
from replicas.request import GenerationRequest, RequestOutput
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.choices import choice_sampling, merged
from serve_app.engine_protocol import AsyncEngine, EngineBuilder, build_served_engine
from serve_app.exchangeable_k import ExchangeableK
from serve_app.generation import ChatMessage, Delta, GenerationJob, ScoredToken, Tokenized, TokenizeJob
from serve_app.k_policy import FixedK, k_policy_of
from serve_app.live_settings import LiveConfig, ModelLive
from serve_app.metric_definitions import OF_REPLICA, Metric
from serve_app.metric_recorder import RayRecorder, Recorder
from serve_app.process_end import end_process_soon
from serve_app.prompt_tokens import check_token_ids, token_ids_of
from serve_app.replica_figures import replica_figures
from serve_app.replica_metrics import ReplicaMetrics, SequenceTimes
from serve_app.replica_spans import SequenceSpans, sequence_spans
from serve_app.request_ids import http_request_id
from serve_app.settings import AnyModelSettings
from serve_app.token_scores import TokenScores

logger = logging.getLogger(__name__)


class ModelReplica:
    """Holds the engine of one model; its methods run on the replica's event loop and never block it for long."""

    def __init__(
        self,
        settings: AnyModelSettings,
        build_engine: EngineBuilder = build_served_engine,
        end_process: Callable[[], None] = end_process_soon,
        recorder_of: Callable[[Sequence[Metric], str], Recorder] = RayRecorder,
        spans_of: Callable[[str], SequenceSpans] = sequence_spans,
    ) -> None:
        """`end_process` ends the replica after its engine: it returns at once."""
        # Here and not in the builder: this node's folders count, not those of the node that builds the application.
        config = with_local_checkpoints(settings.engine_config)
        self._k_policy = k_policy = ExchangeableK(FixedK(0))
        # No method of this object: it has to go, and its engine with it, when its last user does.
        self._live = LiveConfig(ModelLive, lambda live: k_policy.use(k_policy_of(settings, live)))
        self._engine: AsyncEngine = build_engine(config, self._k_policy)
        self._end_process = end_process
        self._metrics = ReplicaMetrics(recorder_of(OF_REPLICA, settings.id))
        self._spans = spans_of(settings.id)
        self._ready_at = time.monotonic()

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve calls it with the deployment's user_config: at the start, and when that changes (ModelLive)."""
        self._live.change(user_config)

    async def generate(self, job: GenerationJob) -> AsyncGenerator[Delta, None]:
        """One delta a step and choice, each choice's last with a finish_reason. Closing or cancelling it aborts all.

        Raises RequestError, whose param is the field that the prompt came in, and EngineDeadError.
        """
        http_request_id.set(job.http_request_id)
        try:
            token_ids = self._admitted(token_ids_of(self._engine.codec, job.prompt, job.tools))
            if job.sampling.temperature == 0:
                # The choices are the same text: it is generated once.
                async with aclosing(self._choice(job, token_ids, 0)) as deltas:
                    async for delta in deltas:
                        for choice in range(job.num_choices):
                            yield replace(delta, choice=choice) if choice else delta
                return
            first = self._choice(job, token_ids, 0)
            async with aclosing(first):
                # The others start when the prompt's KV is in the prefix cache.
                yield await first.__anext__()
                others = [self._choice(job, token_ids, choice) for choice in range(1, job.num_choices)]
                async with aclosing(merged([first, *others])) as deltas:
                    async for delta in deltas:
                        yield delta
        except RequestError as error:
            is_chat = bool(job.prompt) and isinstance(job.prompt[0], ChatMessage)
            param = "messages" if is_chat and error.param in (None, "prompt") else error.param or "prompt"
            raise RequestError(error.message, param, error.code) from None
        except EngineDeadError:
            self._end_process()
            raise

    async def _choice(self, job: GenerationJob, token_ids: tuple[int, ...], choice: int) -> AsyncGenerator[Delta, None]:
        sampling = choice_sampling(job.sampling, choice)
        # What a lone sequence gets; in a larger batch a schedule may give less.
        k = self._k_policy.num_speculative_tokens(1)
        if sampling.num_speculative_tokens is not None:
            k = min(k, sampling.num_speculative_tokens)
        scores = TokenScores(self._engine.codec)
        request_id = f"{job.request_id}-{choice}" if choice else job.request_id
        times, last = SequenceTimes(), None
        try:
            async with aclosing(self._engine.generate(GenerationRequest(request_id, token_ids, sampling))) as outputs:
                async for last in outputs:
                    times.saw(last)
                    if last.finish_reason is not None:
                        log_end(last, time.perf_counter() - times.begin)
                    yield _delta(last, k, scores.of(last), choice)
        finally:
            self._metrics.ended(times, last)
            self._spans.ended(job, choice, times, last)

    async def tokenize(self, job: TokenizeJob) -> Tokenized:
        """Tokens of a prompt. Raises RequestError."""
        codec = self._engine.codec
        token_ids = token_ids_of(codec, job.prompt, job.tools, job.add_special_tokens, job.add_generation_prompt)
        strings = tuple(codec.token(token_id) for token_id in token_ids) if job.wants_strings else None
        return Tokenized(token_ids, strings)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        """The text of `token_ids`, special tokens by name. Raises RequestError for ids that the model does not have."""
        codec = self._engine.codec
        check_token_ids(token_ids, codec.vocab_size, "tokens")
        return codec.decode(token_ids, skip_special_tokens=False)

    async def stats(self) -> dict[str, float]:
        """The engine's figures. Raises EngineDeadError if it is dead."""
        self._check_engine()
        return asdict(self._engine.stats())

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve calls it now and then, for the autoscaling policy."""
        return replica_figures(asdict(self._engine.stats()), time.monotonic() - self._ready_at)

    def record_routing_stats(self) -> dict[str, float]:
        """The same, for the request router of whoever calls this deployment."""
        return self.record_autoscaling_stats()

    async def check_health(self) -> None:
        """Serve calls it, and replaces the replica when it raises. A dead engine ends the process too.

        Serve would wait for three failures, and the replica, which fails fast, would attract what it fails.
        """
        self._check_engine()
        self._live.started()
        stats = asdict(self._engine.stats())
        k = self._k_policy.num_speculative_tokens(max(1, int(stats["running"])))
        self._metrics.engine(stats, self._k_policy.counts, k)

    def _check_engine(self) -> None:
        try:
            self._engine.check_health()
        except EngineDeadError:
            self._end_process()
            raise

    def _admitted(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        limit = self._live.current.max_prompt_tokens
        if limit is not None and len(token_ids) > limit:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens; this server allows {limit} (max_prompt_tokens)",
                "prompt",
                "context_length_exceeded",
            )
        return token_ids

    def __del__(self) -> None:
        # Serve's hook for the end of a replica. A constructor that failed has left no engine.
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.shutdown()
        spans = getattr(self, "_spans", None)
        if spans is not None:
            spans.close()


def _delta(output: RequestOutput, k: int, scores: tuple[ScoredToken, ...] | None, choice: int) -> Delta:
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
        choice=choice,
    )


def log_end(output: RequestOutput, seconds: float) -> None:
    """One line a finished sequence."""
    acceptance = output.acceptance
    fields: dict[str, object] = {
        "sequence": output.request_id,
        "finish_reason": output.finish_reason,
        "seconds": round(seconds, 3),
        "prompt_tokens": output.num_prompt_tokens,
        "cached_tokens": output.num_cached_tokens,
        "output_tokens": output.num_output_tokens,
        "drafted": acceptance.drafted,
        "accepted": acceptance.accepted,
        "steps": acceptance.steps,
    }
    logger.info(
        "%s: %s after %.3f s, %d prompt tokens (%d cached), %d output tokens, %d of %d drafts accepted in %d steps",
        output.request_id,
        output.finish_reason,
        seconds,
        output.num_prompt_tokens,
        output.num_cached_tokens,
        output.num_output_tokens,
        acceptance.accepted,
        acceptance.drafted,
        acceptance.steps,
        extra={"fields": fields},
    )
