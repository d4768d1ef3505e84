"""A tiny random target and conversations "written" by it, for the tests of training."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from replicas.models.model_config import ModelConfig, model_config
from replicas.training.draft_vocab_choice import DraftVocab
from replicas.training.head_module import DraftHead
from replicas.training.shards import Conversation

HIDDEN, VOCAB = 24, 40
USER_START = 1


def hf_config() -> LlamaConfig:
    """Six query heads on two KV heads of 4."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=32, num_hidden_layers=6,
        num_attention_heads=6, num_key_value_heads=2, head_dim=4, max_position_embeddings=64, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, tie_word_embeddings=True, eos_token_id=2,
    )  # fmt: skip


def config() -> ModelConfig:
    """The same, as the models read it."""
    return model_config(hf_config())


def conversation(length: int, answer_start: int, seed: int) -> Conversation:
    """Random tokens and states; the last token has none."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(length, 4 * HIDDEN, generator=generator).half()
    states[-1] = 0
    return Conversation(torch.randint(VOCAB, (length,), generator=generator), states, USER_START, answer_start)


def random_head(draft_vocab_size: int, seed: int = 0) -> DraftHead:
    """A head with weights large enough that attention and recurrence matter."""
    torch.manual_seed(seed)
    head = DraftHead(config(), draft_vocab_size)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(
                torch.randn_like(parameter) * 0.4 if parameter.dim() > 1 else 1 + 0.3 * torch.randn_like(parameter)
            )
        head.tap_scale.uniform_(0.5, 2.0)
    return head


def some_vocab(size: int, seed: int = 0) -> DraftVocab:
    """A random draft vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return DraftVocab(torch.randperm(VOCAB, generator=generator)[:size].sort().values, VOCAB)


def embedding(seed: int = 0) -> Tensor:
    """[VOCAB, HIDDEN]."""
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(seed))


def write_shard(path: Path, conversations: list[Conversation]) -> None:
    """As `generate` does."""
    save_file(
        {
            "tokens": torch.cat([c.tokens for c in conversations]).int(),
            "lengths": torch.tensor([len(c.tokens) for c in conversations], dtype=torch.int32),
            "states": torch.cat([c.states for c in conversations]),
        },
        path,
    )
