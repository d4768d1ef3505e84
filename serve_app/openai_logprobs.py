"""Log-probabilities in the two shapes of the OpenAI API: a list of tokens for a chat, four columns for a completion."""

from collections.abc import Sequence

from pydantic import BaseModel

from serve_app.generation import ScoredToken

LEAST_LOGPROB = -9999.0
"""OpenAI's word for "very unlikely": JSON has no -infinity."""


class TopLogprob(BaseModel):
    """One token that might have been."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """One token that was said, with the most likely ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Of a chat's choice; those of a stream's chunk hold its own tokens."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(BaseModel):
    """Of a completion's choice, one entry a token in each list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    """The most likely tokens, and the chosen one."""
    text_offset: list[int]
    """Where each token begins in the choice's text, in characters."""


def chat_logprobs(scores: Sequence[ScoredToken]) -> ChatLogprobs:
    """Of `scores`."""
    content = [
        TokenLogprob(
            token=token_text(score.token),
            logprob=_finite(score.logprob),
            bytes=list(score.token),
            top_logprobs=[
                TopLogprob(token=token_text(token), logprob=_finite(logprob), bytes=list(token))
                for token, logprob in score.top
            ],
        )
        for score in scores
    ]
    return ChatLogprobs(content=content)


def completion_logprobs(scores: Sequence[ScoredToken]) -> CompletionLogprobs:
    """Of `scores`."""
    rivals = [(*score.top, (score.token, score.logprob)) for score in scores]
    return CompletionLogprobs(
        tokens=[token_text(score.token) for score in scores],
        token_logprobs=[_finite(score.logprob) for score in scores],
        top_logprobs=[{token_text(token): _finite(logprob) for token, logprob in row} for row in rivals],
        text_offset=[score.text_offset for score in scores],
    )


def token_text(token: bytes) -> str:
    r"""The token as text; half a character as OpenAI writes it: `bytes:\xe5\x8c`."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
