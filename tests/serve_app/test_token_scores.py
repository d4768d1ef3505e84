"""Outputs to scored tokens: bytes, and where each token begins in the text."""

from replicas.request import Acceptance, RequestOutput, TokenLogprobs
from serve_app.generation import ScoredToken
from serve_app.token_scores import TokenScores
from tests.serve_app.fake_engine import ByteCodec


def output(token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...] | None) -> RequestOutput:
    return RequestOutput("r", token_ids, "", 1, len(token_ids), Acceptance(), logprobs=logprobs)


def test_nobody_asked() -> None:
    assert TokenScores(ByteCodec()).of(output((65,), None)) is None


def test_tokens_are_bytes() -> None:
    logprobs = TokenLogprobs(65, -1.0, ((66, -0.5), (0xC3, -2.0)))
    wanted = ScoredToken(b"A", -1.0, ((b"B", -0.5), (b"\xc3", -2.0)), 0)
    assert TokenScores(ByteCodec()).of(output((65,), (logprobs,))) == (wanted,)


def test_offsets_go_on_over_the_steps_and_count_characters() -> None:
    scores = TokenScores(ByteCodec())
    offsets: list[int] = []
    # A token a byte; 0 is special and has no text.
    for step in ("a🦅".encode(), "é".encode() + b"\0", b"bc\0", b""):
        found = scores.of(output(tuple(step), tuple(TokenLogprobs(token, -1.0, ()) for token in step)))
        assert found is not None
        offsets += [score.text_offset for score in found]
    assert offsets == [0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 5]
