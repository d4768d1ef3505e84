"""Texts that follow a grammar, by xgrammar: which tokens may come next, also after each draft of a step.

docs/decisions/0014-structured-output.md.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from replicas.errors import RequestError
from replicas.request import Grammar

CACHE_BYTES = 64 * 1024 * 1024
PLACE_IN_XGRAMMAR = re.compile(r"^\[[\d:]+\] \S+: ")


class TokenMatcher:
    """Where one sequence stands in its grammar. Host state: the scheduler asks it before a step and tells it after."""

    def __init__(self, matcher: Any, bitmask: Any) -> None:
        self._matcher = matcher
        self._bitmask = bitmask

    def masks(self, drafts: Sequence[int]) -> tuple[bytes, ...]:
        """Tokens that may come next, then those after each draft; ends early after a draft that may not come.

        Each is a packed int32 bitmask, little-endian: bit i % 32 of word i // 32 is token i. Nothing is remembered.
        """
        found = [self._mask()]
        accepted = 0
        for draft in drafts:
            if not self._matcher.accept_token(draft):
                break
            accepted += 1
            if self._matcher.is_terminated():
                break
            found.append(self._mask())
        if accepted:
            self._matcher.rollback(accepted)
        return tuple(found)

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False if it may not come, and then the matcher is of no more use."""
        return self._matcher.accept_token(token_id)

    def _mask(self) -> bytes:
        self._bitmask.fill_(-1)  # It is left alone where every token may come.
        self._matcher.fill_next_token_bitmask(self._bitmask)
        return self._bitmask.numpy().tobytes()


class Grammars:
    """Compiles grammars over one model's vocabulary; what was compiled lately is kept. Any thread may call it."""

    def __init__(self, vocabulary: Callable[[], list[bytes]], vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        """`vocabulary` gives the bytes of each token by id, none of special ones; it is called at the first grammar.

        `vocab_size` is the logits' width, which may be larger; `stop_token_ids` end a text that is complete.
        """
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._stop_token_ids = list(stop_token_ids)
        self._lock = threading.Lock()
        self._compiler: Any = None

    def compile(self, grammar: Grammar) -> Any:
        """Xgrammar's CompiledGrammar. Raises RequestError for one that is wrong, or if xgrammar is not installed."""
        compiler = self._built_compiler(grammar.param)
        try:
            if grammar.kind == "json_schema":
                # Free white space would let a weak model go on with nothing else for ever.
                return compiler.compile_json_schema(grammar.text, any_whitespace=False, strict_mode=False)
            if grammar.kind == "regex":
                return compiler.compile_regex(grammar.text)
            if grammar.kind == "choice":
                return compiler.compile_grammar(_choice_rule(json.loads(grammar.text)))
            return compiler.compile_structural_tag(grammar.text)
        except (RuntimeError, ValueError) as error:
            reason = PLACE_IN_XGRAMMAR.sub("", str(error)).strip().splitlines() or ["it cannot be compiled"]
            raise RequestError(f"{grammar.param}: {reason[0]}", grammar.param, "invalid_grammar") from None

    def matcher(self, grammar: Grammar) -> TokenMatcher:
        """At the beginning of a text. Raises as `compile`."""
        compiled = self.compile(grammar)
        import xgrammar

        bitmask = xgrammar.allocate_token_bitmask(1, self._vocab_size)
        return TokenMatcher(xgrammar.GrammarMatcher(compiled), bitmask)

    def _built_compiler(self, param: str) -> Any:
        with self._lock:
            if self._compiler is None:
                try:
                    # Imported here: few deployments need it, and it takes a second.
                    import xgrammar
                except ImportError:
                    raise RequestError(f"{param} needs the package xgrammar, which is not installed", param) from None
                tokens = xgrammar.TokenizerInfo(
                    self._vocabulary(),
                    vocab_type=xgrammar.VocabType.RAW,
                    vocab_size=self._vocab_size,
                    stop_token_ids=self._stop_token_ids,
                    add_prefix_space=False,
                )
                self._compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_limit_bytes=CACHE_BYTES)
            return self._compiler


def _choice_rule(choices: Sequence[str]) -> str:
    return "root ::= " + " | ".join(f'"{_escaped(choice)}"' for choice in choices)


def _escaped(text: str) -> str:
    """As xgrammar's EBNF writes a string."""
    return "".join(f"\\u{ord(c):04x}" if ord(c) < 32 else f"\\{c}" if c in '"\\' else c for c in text)
