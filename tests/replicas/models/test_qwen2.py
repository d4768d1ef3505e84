"""The Qwen2 target against transformers' on tiny random checkpoints."""

from pathlib import Path
from typing import Any

import pytest

from replicas.models.registry import target_config
from tests.reference.target_runs import QWEN_YARN, assert_like_transformers
from tests.reference.tiny_checkpoints import write_target

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "one kv head": {"num_key_value_heads": 1},
    "yarn": QWEN_YARN,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_taps_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = write_target(tmp_path, seed=1, model_type="qwen2", **VARIANTS[name])
    assert target_config(tmp_path).architecture == "Qwen2ForCausalLM"
    assert any(key.endswith("q_proj.bias") for key in reference.state_dict())
    assert_like_transformers(tmp_path, reference)
