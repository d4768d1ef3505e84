"""Log-probabilities of an engine's outputs, with tokens as bytes: the ingress has no tokenizer."""

from replicas.request import RequestOutput
from serve_app.engine_protocol import Codec
from serve_app.generation import ScoredToken


class TokenScores:
    """Follows the outputs of one request."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._characters = 0
        """Begun by the tokens so far."""

    def of(self, output: RequestOutput) -> tuple[ScoredToken, ...] | None:
        """Those of `output`; None if the request did not ask."""
        if output.logprobs is None:
            return None
        codec = self._codec
        return tuple(
            ScoredToken(
                codec.token_bytes(one.token_id),
                one.logprob,
                tuple((codec.token_bytes(token_id), logprob) for token_id, logprob in one.top),
                self._begin_of(one.token_id),
            )
            for one in output.logprobs
        )

    def _begin_of(self, token_id: int) -> int:
        """Where the next token begins in the text; special tokens add nothing to it."""
        if self._codec.is_special(token_id):
            return self._characters
        token = self._codec.token_bytes(token_id)
        # 10xxxxxx goes on with the character before.
        continues = [byte & 0xC0 == 0x80 for byte in token]
        begin = self._characters - 1 if continues[:1] == [True] and self._characters else self._characters
        self._characters += continues.count(False)
        return begin
