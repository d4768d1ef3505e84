"""Grammars over a vocabulary: masks along drafts, and what is wrong."""

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest

from replicas.errors import RequestError
from replicas.request import Grammar
from replicas.structured_output import Grammars, TokenMatcher

VOCAB = [*(bytes([code]) for code in range(128)), b"ab", b"ca", b'{"', b"", b"\xf0\x9f", b"\xa6\x85"]
"""ASCII, pairs, a special token (its number is 131), and the two halves of an eagle."""
WIDTH = 150
STOP = 131


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(lambda: VOCAB, WIDTH, [STOP])


def allowed(mask: bytes) -> set[int]:
    words = np.frombuffer(mask, "<u4")
    assert len(words) == -(-WIDTH // 32)
    return {token for token in range(WIDTH) if words[token // 32] >> np.uint32(token % 32) & np.uint32(1)}


def ids(text: str) -> list[int]:
    return list(text.encode("ascii"))


def matcher(grammars: Grammars, kind: str, text: str) -> TokenMatcher:
    return grammars.matcher(Grammar(kind, text, "guided"))  # pyright: ignore[reportArgumentType]


def takes(grammars: Grammars, kind: str, text: str, answer: str) -> bool:
    """True if `answer` is a complete text of the grammar."""
    found = matcher(grammars, kind, text)
    return all(found.accept(token) for token in ids(answer)) and STOP in allowed(found.masks(())[0])


@pytest.mark.parametrize(
    ("kind", "text", "right", "wrong"),
    [
        ("regex", r"[a-c]{2,3}\d", ["ab1", "abc2"], ["a1", "ab", "abd1"]),
        (
            "choice",
            json.dumps(["yes", 'a "no"', "back\\slash", "new\nline"]),
            ["yes", 'a "no"', "back\\slash", "new\nline"],
            ["ye"],
        ),
        ("json_schema", '{"type": "object"}', ["{}", '{"a": [1, {"b": null}]}'], ["[]", '{"a":  1}', '{"a"']),
        (
            "json_schema",
            '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], '
            '"additionalProperties": false}',
            ['{"a": 12}'],
            ["{}", '{"a": "x"}', '{"a": 1, "b": 2}'],
        ),
    ],
)
def test_each_kind(grammars: Grammars, kind: str, text: str, right: list[str], wrong: list[str]) -> None:
    assert [takes(grammars, kind, text, answer) for answer in right] == [True] * len(right)
    assert [takes(grammars, kind, text, answer) for answer in wrong] == [False] * len(wrong)


def test_tokens_of_several_characters_and_half_ones(grammars: Grammars) -> None:
    found = matcher(grammars, "regex", "a?b?c🦅")
    assert allowed(found.masks(())[0]) == {*ids("abc"), 128}
    assert found.accept(128)
    assert allowed(found.masks(())[0]) == set(ids("c"))
    found.accept(ids("c")[0])
    assert allowed(found.masks(())[0]) == {132}
    found.accept(132)
    assert allowed(found.masks(())[0]) == {133}


def test_special_and_padding_tokens_never_come(grammars: Grammars) -> None:
    assert allowed(matcher(grammars, "regex", r"(.|\n)*").masks(())[0]).isdisjoint(range(134, WIDTH))


def along(found: TokenMatcher, drafts: Sequence[int]) -> list[set[int]]:
    return [allowed(mask) for mask in found.masks(tuple(drafts))]


def test_masks_along_drafts_are_those_of_the_steps_one_by_one(grammars: Grammars) -> None:
    schema = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    drafts = [130, *ids('n": 15}'), STOP]
    expected: list[set[int]] = []
    single = matcher(grammars, "json_schema", schema)
    for draft in drafts:
        expected.append(allowed(single.masks(())[0]))
        assert draft in expected[-1]
        assert single.accept(draft)
    found = matcher(grammars, "json_schema", schema)
    # Twice: looking ahead changes nothing. After the end there is nothing to choose.
    assert along(found, drafts) == along(found, drafts) == expected
    assert along(found, drafts[:3]) == expected[:4]
    assert found.accept(drafts[0])
    assert along(found, drafts[1:3]) == expected[1:4]


def test_masks_end_at_a_draft_that_may_not_come(grammars: Grammars) -> None:
    found = matcher(grammars, "regex", "abc")
    assert along(found, ids("axc")) == [set(ids("a")) | {128}, set(ids("b"))]
    assert along(found, ids("x")) == [set(ids("a")) | {128}]
    assert [found.accept(token) for token in ids("abc")] == [True] * 3
    assert not found.accept(ids("x")[0])


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("regex", "[a-c", "Regex parsing error at position 5: Unclosed '['"),
        ("regex", r"(a)\1", "Backreference is not supported"),
        ("json_schema", '{"type": "intger"}', 'Unsupported type "intger"'),
        ("json_schema", '{"$ref": "#/$defs/a"}', "Cannot find field"),
        ("structural_tag", '{"type": "structural_tag", "format": {"type": "nothing"}}', ""),
    ],
)
def test_a_grammar_that_is_wrong_is_a_request_error(grammars: Grammars, kind: str, text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=f"^guided: .*{re.escape(reason)}") as caught:
        matcher(grammars, kind, text)
    assert (caught.value.param, caught.value.code) == ("guided", "invalid_grammar")
    assert "\n" not in caught.value.message
    assert "cpp" not in caught.value.message


def test_a_grammar_is_compiled_once(grammars: Grammars) -> None:
    calls: list[int] = []

    def vocabulary() -> list[bytes]:
        calls.append(1)
        return VOCAB

    own = Grammars(vocabulary, WIDTH, [STOP])
    for _ in range(3):
        own.compile(Grammar("regex", "a", "guided"))
    assert calls == [1]
