"""What a replica tells the autoscaler and the router of itself. Without Ray."""

from collections.abc import Mapping

TOLD = (
    "running",
    "waiting",
    "waiting_prompt_tokens",
    "num_speculative_tokens",
    "decode_seconds",
    "decode_sequence_seconds",
    "decode_tokens",
)
"""Keys of the engine's stats, passed on as they are; what is summed there becomes a mean where it is read."""


def replica_figures(stats: Mapping[str, float], uptime_s: float) -> dict[str, float]:
    """Of the engine's stats (replicas.engine.EngineStats); figures that an engine does not have are left out.

    Serve takes numbers only: one value that is none would end its reports for good.
    """
    figures = {name: float(stats[name]) for name in TOLD if name in stats}
    return figures | {"kv_use": kv_use(stats) or 0.0, "uptime_s": uptime_s}


def kv_use(stats: Mapping[str, float]) -> float | None:
    """The share of the KV blocks in use, 0 to 1; None if the engine does not know how many it has, as vLLM may not."""
    total = stats.get("total_blocks")
    return 1 - stats["free_blocks"] / total if total else None
