"""The tiny random target, loaded once a run."""

from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from replicas.config import SpeculativeConfig
from tests.reference.hand_built_engine import TinyTarget
from tests.reference.mtp import NaiveMtp
from tests.reference.tiny_checkpoints import write_target


@pytest.fixture(scope="session")
def tiny_reference(tiny_folder: Path) -> LlamaForCausalLM:
    """The same target in transformers, float32."""
    return LlamaForCausalLM.from_pretrained(tiny_folder).float().eval()


@pytest.fixture(scope="session")
def tiny_target(tiny_folder: Path) -> TinyTarget:
    """The same target in ours, float32."""
    return TinyTarget(tiny_folder)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    """A model of another shape with the target's tokenizer, and the same in transformers."""
    folder = tmp_path_factory.mktemp("small_model")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_key_value_heads": 1}
    return folder, write_target(folder, seed=4, head_dim=8, **sizes)


@pytest.fixture(scope="session")
def tiny_mtp(tmp_path_factory: pytest.TempPathFactory, tiny_reference: LlamaForCausalLM) -> Path:
    """A random MTP layer for it."""
    folder = tmp_path_factory.mktemp("tiny_mtp")
    NaiveMtp(tiny_reference).write(folder)
    return folder


@pytest.fixture(scope="session")
def speculative(
    tiny_head: Path, small_model: tuple[Path, LlamaForCausalLM], tiny_mtp: Path
) -> dict[str, SpeculativeConfig]:
    """Every drafter of the registry, for it, by method."""
    configs = [
        SpeculativeConfig(method="draft_model", model=str(small_model[0])),
        SpeculativeConfig(method="eagle3", model=str(tiny_head)),
        SpeculativeConfig(method="mtp", model=str(tiny_mtp)),
        SpeculativeConfig(method="ngram", prompt_lookup_min=1, prompt_lookup_max=3),
    ]
    return {config.method: config for config in configs}
