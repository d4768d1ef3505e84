"""The bytes of single tokens: a token of a byte-level vocabulary may hold half a character."""

import json
import re
from typing import Any

from tokenizers import Tokenizer

SPELLED_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""How tokenizers with byte fallback name the token of one byte."""


class TokenBytes:
    """What each token of `backend` adds to a text."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
        decoder: Any = backend.decoder
        kinds = _kinds(json.loads(decoder.__getstate__())) if decoder is not None else set[str]()
        self._bytes_of_characters = _byte_level_alphabet() if "ByteLevel" in kinds else None
        self._spells_bytes = "ByteFallback" in kinds

    def of(self, token_id: int) -> bytes:
        """Bytes of `token_id`; of a special token its name; none of an id that only pads the model's vocabulary."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._bytes_of_characters is not None:
            return bytes(self._bytes_of_characters[character] for character in token)
        spelled = SPELLED_BYTE.fullmatch(token) if self._spells_bytes else None
        # U+2581 stands for a space in SentencePiece's vocabularies.
        return bytes.fromhex(spelled[1]) if spelled else token.replace("\u2581", " ").encode()


def _kinds(decoder: Any) -> set[str]:
    """Types of a decoder and of those that it is a sequence of."""
    return {decoder["type"]}.union(*(_kinds(part) for part in decoder.get("decoders", ())))


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: visible Latin-1 characters are themselves, the others follow from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}
