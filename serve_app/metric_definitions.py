"""Every metric that Eyrie exports. docs/metrics.md has the same list, and a test holds both together."""

from dataclasses import dataclass
from typing import Literal

RAY_PREFIX = "ray_"
"""Ray's exporter puts it before every name."""

SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
PACE = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
TOKENS = (1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 32768.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Serve adds the tags deployment, replica and application, and we model_name, to each."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    vllm: str | None = None
    """vLLM's name for the same, as its exporter writes it; None: it has none."""
    tags: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """As Prometheus sees it; a histogram has _bucket, _count and _sum behind it."""
        return f"{RAY_PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


RUNNING = Metric("eyrie_num_requests_running", "gauge", "Sequences that hold KV blocks", "vllm:num_requests_running")
WAITING = Metric(
    "eyrie_num_requests_waiting", "gauge", "Sequences that wait in the replica", "vllm:num_requests_waiting"
)
KV_USE = Metric(
    "eyrie_kv_cache_usage_perc", "gauge", "Share of the KV blocks in use, 0 to 1", "vllm:kv_cache_usage_perc"
)
K = Metric("eyrie_num_speculative_tokens", "gauge", "K in force for the sequences that run now")
STEPS = Metric("eyrie_engine_steps", "counter", "Steps of the engine")
STEP_SECONDS = Metric(
    "eyrie_engine_step_seconds",
    "counter",
    "Seconds in steps: part is program (the device's) or host (planning, packing, text)",
    tags=("part",),
)
PREEMPTIONS = Metric(
    "eyrie_num_preemptions", "counter", "Sequences that gave their blocks up", "vllm:num_preemptions_total"
)
PREFIX_QUERIES = Metric(
    "eyrie_prefix_cache_queries",
    "counter",
    "Prompt tokens looked for in the prefix cache",
    "vllm:prefix_cache_queries_total",
)
PREFIX_HITS = Metric("eyrie_prefix_cache_hits", "counter", "Those found", "vllm:prefix_cache_hits_total")
PROMPT_TOKENS = Metric("eyrie_prompt_tokens", "counter", "Tokens of prompts", "vllm:prompt_tokens_total")
GENERATION_TOKENS = Metric("eyrie_generation_tokens", "counter", "Tokens generated", "vllm:generation_tokens_total")
DRAFTS = Metric(
    "eyrie_spec_decode_num_drafts",
    "counter",
    "Decode steps, a sequence, with drafts",
    "vllm:spec_decode_num_drafts_total",
)
DRAFT_TOKENS = Metric(
    "eyrie_spec_decode_num_draft_tokens", "counter", "Draft tokens verified", "vllm:spec_decode_num_draft_tokens_total"
)
ACCEPTED_TOKENS = Metric(
    "eyrie_spec_decode_num_accepted_tokens", "counter", "Those accepted", "vllm:spec_decode_num_accepted_tokens_total"
)
DRAFTED_AT = Metric(
    "eyrie_spec_decode_num_draft_tokens_per_pos",
    "counter",
    "Draft tokens verified, by position from 0",
    tags=("position",),
)
ACCEPTED_AT = Metric(
    "eyrie_spec_decode_num_accepted_tokens_per_pos",
    "counter",
    "Those accepted, by position from 0",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    tags=("position",),
)
REQUESTS = Metric(
    "eyrie_request_success",
    "counter",
    "Sequences that ended: finished_reason is stop, length, abort (the client left) or error",
    "vllm:request_success_total",
    tags=("finished_reason",),
)
TTFT = Metric(
    "eyrie_time_to_first_token_seconds",
    "histogram",
    "From a job's arrival at the replica to its first token",
    "vllm:time_to_first_token_seconds",
    boundaries=SECONDS,
)
TPOT = Metric(
    "eyrie_request_time_per_output_token_seconds",
    "histogram",
    "Of a request: seconds after its first token, over the tokens after it",
    "vllm:request_time_per_output_token_seconds",
    boundaries=PACE,
)
E2E = Metric(
    "eyrie_e2e_request_latency_seconds",
    "histogram",
    "From a job's arrival at the replica to its last token",
    "vllm:e2e_request_latency_seconds",
    boundaries=SECONDS,
)
REQUEST_PROMPT_TOKENS = Metric(
    "eyrie_request_prompt_tokens", "histogram", "Tokens of a prompt", "vllm:request_prompt_tokens", boundaries=TOKENS
)
REQUEST_GENERATION_TOKENS = Metric(
    "eyrie_request_generation_tokens",
    "histogram",
    "Tokens of an answer",
    "vllm:request_generation_tokens",
    boundaries=TOKENS,
)
TTFT_SECONDS = Metric(
    "eyrie_time_to_first_token_exact_seconds", "counter", "Sum of what that histogram counts, exactly"
)
E2E_SECONDS = Metric("eyrie_e2e_request_latency_exact_seconds", "counter", "Sum of what that histogram counts, exactly")
RETRIES = Metric("eyrie_requests_retried", "counter", "Requests begun again elsewhere, their replica lost (ingress)")
BROKEN = Metric("eyrie_streams_broken", "counter", "Streams that ended with an error event (ingress)")

OF_REPLICA = (
    RUNNING,
    WAITING,
    KV_USE,
    K,
    STEPS,
    STEP_SECONDS,
    PREEMPTIONS,
    PREFIX_QUERIES,
    PREFIX_HITS,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    DRAFTS,
    DRAFT_TOKENS,
    ACCEPTED_TOKENS,
    DRAFTED_AT,
    ACCEPTED_AT,
    REQUESTS,
    TTFT,
    TPOT,
    E2E,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    TTFT_SECONDS,
    E2E_SECONDS,
)
OF_INGRESS = (RETRIES, BROKEN)
METRICS = OF_REPLICA + OF_INGRESS
