"""OpenAI's two shapes of log-probabilities."""

import math

import pytest

from serve_app.generation import ScoredToken
from serve_app.openai_logprobs import chat_logprobs, completion_logprobs, token_text

EAGLE = "🦅".encode()
SCORES = (
    ScoredToken(b" a", -0.5, ((b" a", -0.5), (EAGLE[:2], -1.0)), 0),
    ScoredToken(EAGLE[:3], -math.inf, ((b"b", -0.25),), 2),
)


def test_a_chat_lists_tokens() -> None:
    a = {"token": " a", "logprob": -0.5, "bytes": [32, 97]}
    assert chat_logprobs(SCORES).model_dump() == {
        "content": [
            a | {"top_logprobs": [a, {"token": r"bytes:\xf0\x9f", "logprob": -1.0, "bytes": [0xF0, 0x9F]}]},
            {
                "token": r"bytes:\xf0\x9f\xa6",
                "logprob": -9999.0,
                "bytes": [0xF0, 0x9F, 0xA6],
                "top_logprobs": [{"token": "b", "logprob": -0.25, "bytes": [98]}],
            },
        ],
        "refusal": None,
    }


def test_a_completion_has_columns_and_always_the_chosen_token() -> None:
    assert completion_logprobs(SCORES).model_dump() == {
        "tokens": [" a", r"bytes:\xf0\x9f\xa6"],
        "token_logprobs": [-0.5, -9999.0],
        "top_logprobs": [{" a": -0.5, r"bytes:\xf0\x9f": -1.0}, {"b": -0.25, r"bytes:\xf0\x9f\xa6": -9999.0}],
        "text_offset": [0, 2],
    }


@pytest.mark.parametrize(
    ("token", "text"), [(b"", ""), (b"\n", "\n"), (EAGLE, "🦅"), (EAGLE[1:], r"bytes:\x9f\xa6\x85")]
)
def test_half_a_character_is_spelled(token: bytes, text: str) -> None:
    assert token_text(token) == text
