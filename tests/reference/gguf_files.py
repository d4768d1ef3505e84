"""GGUF files of a tiny Llama, written with the gguf package."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

VOCAB, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 262, 16, 24, 4, 2, 4
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"

Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def byte_tokens() -> list[str]:
    """One token a byte, spelt as byte-level BPE does."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    spelling = {byte: chr(byte) for byte in shown} | {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [spelling[byte] for byte in range(256)]


def write_gguf(path: Path, *, tied: bool = True, architecture: str = "llama", seed: int = 0) -> Weights:
    """A Llama of one layer with a byte-level tokenizer; returns its tensors by their GGUF names."""
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        # Multiples of 1/8 lose nothing in float16.
        return (random.integers(-8, 8, shape) / 8).astype(np.float32)

    weights = {
        "token_embd.weight": matrix(VOCAB, HIDDEN),
        "output_norm.weight": matrix(HIDDEN),
        "blk.0.attn_norm.weight": matrix(HIDDEN),
        "blk.0.attn_q.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm.weight": matrix(HIDDEN),
        "blk.0.ffn_gate.weight": matrix(FFN, HIDDEN),
        "blk.0.ffn_up.weight": matrix(FFN, HIDDEN),
        "blk.0.ffn_down.weight": matrix(HIDDEN, FFN),
    }
    if not tied:
        weights["output.weight"] = matrix(VOCAB, HIDDEN)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    writer.add_token_list([*specials, *byte_tokens(), "he", "ll", "hell"])
    writer.add_token_types([3] * 3 + [1] * (VOCAB - 3))
    writer.add_token_merges(["h e", "l l", "he ll"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights
