"""Every drafting method that vLLM and our engine share gives the text of no drafting, in vLLM too."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from benchmarks.metrics import pooled
from benchmarks.workloads import OWN_PROMPTS, read_prompts
from replicas.request import Acceptance, GenerationRequest, SamplingParams
from replicas.vllm_engine.config import VllmConfig
from replicas.vllm_engine.engine import build_vllm_engine
from serve_app.checkpoint_paths import PROJECT_ROOT, with_local_checkpoints
from serve_app.k_policy import FixedK
from serve_app.serve_config import load_settings

pytestmark = pytest.mark.timeout(1200)

K = 3
TOKENS = 32
LAYERS = 3
Answer = tuple[tuple[int, ...], Acceptance]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory, demo_model_folder: Path) -> Path:
    """The target's first layers, untrained, in the form of `python -m replicas.training.distill`."""
    folder = tmp_path_factory.mktemp("small") / "model"
    shutil.copytree(demo_model_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": LAYERS}))
    weights = load_file(folder / "model.safetensors")
    dropped = tuple(f"model.layers.{layer}." for layer in range(LAYERS, config["num_hidden_layers"]))
    kept = {name: weight for name, weight in weights.items() if not name.startswith(dropped)}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def answers(speculative: dict[str, Any] | None) -> Sequence[Answer]:
    """Of vLLM with this speculative_config, to some of the project's own prompts, one by one."""
    [model] = load_settings(PROJECT_ROOT / "configs" / "vllm.yaml").models
    fields = model.engine_config.model_dump(mode="json")
    config = VllmConfig.model_validate(fields | {"speculative_config": speculative, "max_model_len": 512})
    engine = build_vllm_engine(with_local_checkpoints(config), FixedK(K if speculative else 0))
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)

    async def answer(name: str, messages: Sequence[Any]) -> Answer:
        tokens: list[int] = []
        request = GenerationRequest(name, tuple(engine.codec.encode_chat(messages)), sampling)
        outputs = [output async for output in engine.generate(request)]
        for output in outputs:
            tokens += output.token_ids
        return tuple(tokens), outputs[-1].acceptance

    async def all_answers() -> list[Answer]:
        prompts = read_prompts(OWN_PROMPTS, 4)
        return [await answer(str(index), prompt.messages) for index, prompt in enumerate(prompts)]

    try:
        return asyncio.run(all_answers())
    finally:
        engine.shutdown()


@pytest.fixture(scope="module")
def plain() -> Sequence[Answer]:
    return answers(None)


def same_text(found: Sequence[Answer], plain: Sequence[Answer]) -> Acceptance:
    """All drafts together."""
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in plain]
    assert all(len(tokens) == TOKENS for tokens, _ in found)
    return pooled(acceptance for _, acceptance in found)


def test_without_drafts_a_step_is_a_token(plain: Sequence[Answer]) -> None:
    assert [acceptance for _, acceptance in plain] == [Acceptance(steps=TOKENS - 1)] * len(plain)


def test_a_small_model_drafts_in_vllm(plain: Sequence[Answer], small_model: Path) -> None:
    speculative = {"method": "draft_model", "model": str(small_model), "num_speculative_tokens": K}
    total = same_text(answers(speculative), plain)
    # Untrained layers are hardly ever right: that they drafted at every step is what counts.
    assert total.drafted > 2 * total.steps


def test_prompt_lookup_drafts_in_vllm(plain: Sequence[Answer]) -> None:
    total = same_text(answers({"method": "ngram", "num_speculative_tokens": K}), plain)
    assert 0 < total.accepted < total.drafted
