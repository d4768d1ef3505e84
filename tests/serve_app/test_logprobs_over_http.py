"""Log-probabilities in answers and streams, read as the openai client reads them."""

import json
from typing import Any

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.serve_app.local_site import PIECES, Site


def chat_token(token: str, logprob: float) -> dict[str, Any]:
    most_likely = {"token": "A", "logprob": -0.25, "bytes": [65]}
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": [most_likely]}


class TestLogprobs:
    """Of the fake's tokens 1 and 2 at each of five steps; the third of them has no text."""

    STEP = (chat_token("\x01", -1.5), chat_token("\x02", -2.5))

    def test_a_plain_chat(self) -> None:
        answer = Site().chat(logprobs=True, top_logprobs=1)
        assert answer.json()["choices"][0]["logprobs"] == {"content": [*self.STEP] * 5, "refusal": None}
        found = ChatCompletion.model_validate(answer.json()).choices[0].logprobs
        assert found is not None
        assert [token.logprob for token in found.content or ()] == [-1.5, -2.5] * 5

    def test_a_streamed_chat_has_each_token_once_also_of_a_step_without_text(self) -> None:
        *chunks, done = Site().events(logprobs=True, top_logprobs=1)
        assert done == "[DONE]"
        assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == PIECES
        assert [chunk["choices"][0]["logprobs"] for chunk in chunks] == [{"content": [*self.STEP], "refusal": None}] * 5
        for chunk in chunks:
            assert ChatCompletionChunk.model_validate(chunk).choices[0].logprobs is not None

    def test_a_completion(self) -> None:
        body = {"model": "m", "prompt": "x", "logprobs": 2}
        answer = Site().send("POST", "/v1/completions", json=body).json()
        assert answer["choices"][0]["logprobs"] == {
            "tokens": ["\x01", "\x02"] * 5,
            "token_logprobs": [-1.5, -2.5] * 5,
            "top_logprobs": [
                {"A": -0.25, r"bytes:\xff": -9999.0, "\x01": -1.5},
                {"A": -0.25, r"bytes:\xff": -9999.0, "\x02": -2.5},
            ]
            * 5,
            "text_offset": list(range(10)),
        }
        found = Completion.model_validate(answer).choices[0].logprobs
        assert found is not None
        assert found.text_offset == list(range(10))

    def test_a_streamed_completion_goes_on_with_the_offsets(self) -> None:
        body = {"model": "m", "prompt": "x", "logprobs": 0, "stream": True}
        answer = Site().send("POST", "/v1/completions", json=body)
        chunks = [json.loads(part)["choices"][0] for part in answer.text.split("data: ")[1:-1]]
        assert [chunk["text"] for chunk in chunks] == PIECES
        assert [chunk["logprobs"]["text_offset"] for chunk in chunks] == [[2 * i, 2 * i + 1] for i in range(5)]
        assert [chunk["logprobs"]["top_logprobs"] for chunk in chunks] == [[{"\x01": -1.5}, {"\x02": -2.5}]] * 5
