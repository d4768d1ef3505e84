"""Runs a made checkpoint in a process of its own, and prints what it said as a line of JSON.

    python -m tests.reference.published_run TARGET HEAD DEVICE RANKS PROMPT COUNT
    python -m tests.reference.published_run TARGET HEAD transformers 1 PROMPT COUNT

PROMPT: token ids with commas between them. transformers: that library's own model, asked for the log-probabilities of
the COUNT tokens that end PROMPT.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

K = 3


def main(target: str, head: str, device: Any, ranks: str, prompt: str, count: str) -> None:
    """Print the answer."""
    tokens = [int(token) for token in prompt.split(",")]
    if device == "transformers":
        told = by_transformers(Path(target), tokens, int(count))
    else:
        told = by_engine(target, head, device, int(ranks), tokens, int(count))
    print(json.dumps(told), flush=True)


def by_engine(target: str, head: str, device: Any, ranks: int, prompt: list[int], count: int) -> dict[str, Any]:
    """Greedy tokens with K drafts a step and with none, the latter's log-probabilities, and what was counted."""
    from replicas.config import EngineConfig, SpeculativeConfig
    from replicas.engine import build_engine
    from replicas.engine_memory import plan_config
    from tests.reference.hand_built_engine import generate, greedy_request
    from tests.reference.k_policies import FixedK

    config = EngineConfig(
        model=target,
        device=device,
        dtype="float16" if device == "cpu" else "bfloat16",
        tensor_parallel_size=ranks,
        max_model_len=64,
        max_num_seqs=1,
        max_num_batched_tokens=16,
        speculative_config=SpeculativeConfig(
            method="eagle3", model=head, num_speculative_tokens=K, allowed_num_speculative_tokens=(K,)
        ),
    )
    policy, begin = FixedK(K), time.monotonic()
    engine = build_engine(config, policy)
    loaded = time.monotonic()
    watched = None
    if device == "xla-cpu":
        from tests.device.xla.watched_engine import watch

        watched = watch(engine._runner)  # pyright: ignore[reportArgumentType]
    try:
        drafted = generate(engine, [greedy_request("drafted", prompt, count)])["drafted"]
        policy.k = 0
        plain = generate(engine, [greedy_request("plain", prompt, count, logprobs=1)])["plain"]
    finally:
        engine.close()
    entries = [entry for output in plain.outputs for entry in output.logprobs or ()]
    told: dict[str, Any] = {
        "drafted": drafted.token_ids,
        "plain": plain.token_ids,
        "logprobs": [entry.logprob for entry in entries],
        "num_drafted": drafted.last.acceptance.drafted,
        "num_accepted": drafted.last.acceptance.accepted,
        "steps": drafted.last.acceptance.steps,
        "planned_bytes_a_rank": plan_config(config).fixed,
        "load_s": round(loaded - begin, 1),
        "run_s": round(time.monotonic() - loaded, 1),
    }
    if watched is not None:
        from tests.device.xla.watched_engine import Counts

        counts = Counts.now()
        told |= {
            "programs": len(set(watched.calls)),
            "calls": len(watched.calls),
            "compiled": counts.compiled,
            "executed": counts.executed,
            "fallbacks": counts.fallbacks,
            "forbidden": sorted(watched.forbidden()),
            "places_of_states": [len(pointers) for pointers in watched.pointers.values()],
        }
    return told


def by_transformers(target: Path, tokens: list[int], count: int) -> dict[str, Any]:
    """Log-probabilities of the last `count` of `tokens`, and the likeliest token at their places."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        logits: Any = model(torch.tensor([tokens])).logits[0, -count - 1 : -1].float()
    chosen = torch.tensor(tokens[-count:])[:, None]
    logprobs = logits.log_softmax(-1).gather(1, chosen).flatten()
    return {"likeliest": logits.argmax(-1).tolist(), "logprobs": logprobs.tolist()}


if __name__ == "__main__":
    main(*sys.argv[1:])
