"""The bytes of tokens: of a text's tokens, joined, they are the text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence, Strip
from tokenizers.models import BPE

from replicas.text_codec import TextCodec
from replicas.token_bytes import TokenBytes


@pytest.fixture(scope="module")
def codec(demo_model_folder: Path) -> TextCodec:
    return TextCodec(demo_model_folder)


class TestByteLevel:
    # This vocabulary lacks some bytes, and the tokenizer drops them: control characters, the first of rare planes.
    @given(text=st.text(alphabet="ab 'éß鷹岩🦅👩\u200d\n\t", max_size=40))
    def test_any_text(self, codec: TextCodec, text: str) -> None:
        assert b"".join(map(codec.token_bytes, codec.encode(text))) == text.encode()

    def test_every_token_has_bytes(self, codec: TextCodec) -> None:
        tokens = [codec.token_bytes(token_id) for token_id in range(codec.vocab_size)]
        assert all(tokens)
        assert {bytes([byte]) for byte in b"az09 \n\xe5\x8c\xf0\x9f"} <= set(tokens)
        assert b" the" in tokens

    def test_half_a_character(self, codec: TextCodec) -> None:
        parts = [codec.token_bytes(token_id) for token_id in codec.encode("🦅")]
        assert len(parts) > 1
        assert b"".join(parts) == "🦅".encode()

    def test_a_special_token_is_its_name(self, codec: TextCodec) -> None:
        [token_id] = codec.encode("<|im_end|>")
        assert codec.token_bytes(token_id) == b"<|im_end|>"
        assert codec.is_special(token_id)
        assert not codec.is_special(codec.encode("a")[0])

    def test_padding_of_the_models_vocabulary_has_none(self, codec: TextCodec) -> None:
        assert codec.token_bytes(codec.vocab_size + 7) == b""


class TestByteFallback:
    def test_words_and_spelled_bytes(self) -> None:
        words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "\u2581a", "<0x4>"]
        model = BPE({word: index for index, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
        backend = Tokenizer(model)
        backend.decoder = Sequence([Replace("\u2581", " "), ByteFallback(), Fuse(), Strip(" ", 1, 0)])
        found = TokenBytes(backend)
        wanted = {"<0xE9>": b"\xe9", "<0x0A>": b"\n", "\u2581a": b" a", "a": b"a", "<0x4>": b"<0x4>"}
        assert {word: found.of(words.index(word)) for word in wanted} == wanted

    def test_without_a_decoder_tokens_are_their_names(self) -> None:
        backend = Tokenizer(BPE({"<0x41>": 0, "b": 1}, []))
        assert [TokenBytes(backend).of(token_id) for token_id in (0, 1, 2)] == [b"<0x41>", b"b", b""]
