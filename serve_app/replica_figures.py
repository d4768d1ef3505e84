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
    total = stats.get("total_blocks")
    kv_use = 1 - stats["free_blocks"] / total if total else 0.0
    return figures | {"kv_use": kv_use, "uptime_s": uptime_s}
