"""Text to tokens and back: whole, as a chat, and as a stream that never shows half a character or a stop string."""

import copy
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from replicas.errors import CheckpointError, RequestError
from replicas.token_bytes import TokenBytes


class TextCodec:
    """The tokenizer of the model in `folder`. Raises CheckpointError if there is none that can be read."""

    def __init__(self, folder: Path) -> None:
        try:
            # transformers chooses among some hundred tokenizer classes here: no type says which.
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{folder} has no tokenizer that can be read: {reason}") from error
        if not self._tokenizer.is_fast:
            raise CheckpointError(f"{folder} has no tokenizer.json, which streaming needs")
        self._backend: Tokenizer = self._tokenizer.backend_tokenizer
        self._plain: Tokenizer = copy.deepcopy(self._backend)
        self._plain.encode_special_tokens = True
        added = self._backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._token_bytes = TokenBytes(self._backend)
        self._special_texts = [added[token_id].content for token_id in sorted(self._special_ids)]
        self.eos_token_ids = self._read_eos(folder)
        """Tokens that end a text, by config.json, generation_config.json and the tokenizer."""

    def _read_eos(self, folder: Path) -> tuple[int, ...]:
        declared: set[int] = set()
        for path in (folder / "config.json", folder / "generation_config.json"):
            value: Any = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
            declared.update([value] if isinstance(value, int) else value or [])
        if self._tokenizer.eos_token_id is not None:
            declared.add(self._tokenizer.eos_token_id)
        return tuple(sorted(declared))

    @property
    def vocab_size(self) -> int:
        """Tokens that exist, added ones included; the model's embedding may be padded beyond."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of each token, added ones included."""
        return self._backend.get_vocab(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a plain prompt; special tokens in it are taken as such. Some models begin a text with one more."""
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    @property
    def tool_format(self) -> Literal["hermes", "other"] | None:
        """How the chat template writes tools and their calls; None if it knows none."""
        template = str(self._tokenizer.chat_template)
        if re.search(r"\btools\b", template) is None:
            return None
        return "hermes" if "<tool_call>" in template else "other"

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Tokens of `messages` through the chat template, up to where the assistant's answer begins.

        A special token typed into a message stays text, so that nobody can end a turn and forge another.
        Raises RequestError if there is no template, or the template refuses the messages.
        """
        if self._tokenizer.chat_template is None:
            raise RequestError("this model has no chat template: use /v1/completions", param="messages")
        # A mark stands for each typed special token while the template runs; its random part cannot be typed.
        mark = f"\ue000{secrets.token_hex(8)}:%d\ue000"
        marks = {text: mark % index for index, text in enumerate(self._special_texts)}
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                _replace(messages, marks),
                tools=_replace(tools, marks) or None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise RequestError(f"the model's chat template refuses the messages: {error}", param="messages") from error
        pieces = re.split(mark.replace("%d", r"(\d+)"), rendered)
        token_ids: list[int] = []
        for position, piece in enumerate(pieces):
            # Every second piece is the number in a mark.
            if position % 2:
                token_ids += self._plain.encode(self._special_texts[int(piece)], add_special_tokens=False).ids
            else:
                token_ids += self._backend.encode(piece, add_special_tokens=False).ids
        return token_ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that make no character become U+FFFD."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token, in which a space may be another character."""
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text, in UTF-8, perhaps not whole characters; of a special token its name."""
        return self._token_bytes.of(token_id)

    def all_token_bytes(self) -> list[bytes]:
        """`token_bytes` of every token by id, empty for those that have no text."""
        return [b"" if self.is_special(token_id) else self.token_bytes(token_id) for token_id in range(self.vocab_size)]

    def is_special(self, token_id: int) -> bool:
        """True for a token that has no text."""
        return token_id in self._special_ids

    def text_stream(self, stop: tuple[str, ...] = ()) -> "TextStream":
        """The text of one sequence, token by token, that ends before the first of the `stop` strings."""
        return TextStream(self._backend, self._special_ids, stop)


class TextStream:
    """Incremental detokenisation: the texts taken, joined, are the decoded sequence up to its first stop string.

    The first is the one that is complete first, and of those the longest; so it does not depend on how the text
    was cut into tokens.
    """

    def __init__(self, backend: Tokenizer, special_ids: frozenset[int], stop: tuple[str, ...]) -> None:
        self._backend = backend
        self._special_ids = special_ids
        self._stop = tuple(filter(None, stop))
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._decoded: list[int] = []
        """Tokens of the decoder's latest text: some tokenizers write a token by the one before it."""
        self._incomplete: list[int] = []
        """Tokens since then: they end within a character."""
        self._unsent = ""
        self._stopped = False
        self._finished = False

    def push(self, token_id: int, may_stop: bool = True) -> bool:
        """Add a token. True when a stop string is complete: it and all after it, later tokens too, are dropped.

        A stop string that is complete while none `may_stop` the text is text.
        """
        # The decoder would keep special tokens until the next text, and decode all of them at each step.
        if self._stopped or token_id in self._special_ids:
            return self._stopped
        self._incomplete.append(token_id)
        text = self._step(token_id)
        if text:
            self._decoded, self._incomplete = self._incomplete, []
            self._append(text, may_stop)
        return self._stopped

    def take(self) -> str:
        """The text since the last call, less an end that may yet become a stop string."""
        held = 0 if self._stopped or self._finished else self._held_length()
        sent = len(self._unsent) - held
        text, self._unsent = self._unsent[:sent], self._unsent[sent:]
        return text

    def finish(self) -> None:
        """No token will follow: `take` gives the rest, where an incomplete character is U+FFFD."""
        if self._incomplete and not self._stopped:
            before = self._decode(self._decoded)
            both = self._decode(self._decoded + self._incomplete)
            rest = both.removeprefix(before) if both.startswith(before) else self._decode(self._incomplete)
            self._incomplete = []
            self._append(rest, may_stop=True)
        self._finished = True

    def _step(self, token_id: int) -> str | None:
        try:
            return self._decoder.step(self._backend, token_id)
        except Exception:  # It has no type of its own: bytes after the text that was sent have changed that text.
            self._decoder = DecodeStream(ids=self._incomplete, skip_special_tokens=True)
            return self._decode(self._incomplete)

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=True)

    def _append(self, text: str, may_stop: bool) -> None:
        before = len(self._unsent)
        self._unsent += text
        if not may_stop:
            return
        # Only what ends in the new text: an earlier one was text.
        begins = [(self._unsent.find(stop, max(0, before - len(stop) + 1)), stop) for stop in self._stop]
        found = [(begin + len(stop), begin) for begin, stop in begins if begin >= 0]
        if found:
            self._unsent = self._unsent[: min(found)[1]]
            self._stopped = True

    def _held_length(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        return max(
            (size for stop in self._stop for size in range(1, len(stop)) if self._unsent.endswith(stop[:size])),
            default=0,
        )


def _replace(value: Any, replacements: Mapping[str, str]) -> Any:
    """A copy of nested mappings and sequences, with `replacements` made in every string."""
    if isinstance(value, str):
        for old, new in replacements.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value)
        return {key: _replace(item, replacements) for key, item in items.items()}
    if isinstance(value, Sequence):
        return [_replace(item, replacements) for item in cast("Sequence[Any]", value)]
    return value
