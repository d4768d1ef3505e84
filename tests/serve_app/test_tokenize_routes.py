"""/tokenize and /detokenize, in vLLM's shapes."""

from typing import Any

import pytest

from tests.serve_app.local_site import Site

USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"prompt": "hé"}, list("hé".encode())),
        ({"prompt": "hi", "model": "m"}, list(b"hi")),
        ({"prompt": ""}, []),
        ({"prompt": "hi", "add_special_tokens": False}, [0, *b"hi"]),
        ({"messages": USER}, list(b"<user>hi")),
        ({"messages": USER, "add_generation_prompt": False, "add_special_tokens": False}, [*b"<user>hi", 0]),
        ({"messages": USER, "continue_final_message": False}, list(b"<user>hi")),
    ],
)
def test_tokens(options: dict[str, Any], tokens: list[int]) -> None:
    answer = Site().send("POST", "/tokenize", json=options)
    assert answer.json() == {"count": len(tokens), "max_model_len": 64, "tokens": tokens, "token_strs": None}


def test_tokens_as_the_vocabulary_spells_them() -> None:
    answer = Site().send("POST", "/tokenize", json={"prompt": "hi", "return_token_strs": True})
    assert answer.json()["token_strs"] == ["<104>", "<105>"]


def test_the_way_back() -> None:
    answer = Site().send("POST", "/detokenize", json={"model": "m", "tokens": [*b"h\xc3\xa9", 0]})
    assert answer.json() == {"prompt": "hé\0"}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, 400, "add_generation_prompt"),
        ("/tokenize", {"messages": USER, "add_special_tokens": True}, 400, "add_special_tokens"),
        ("/tokenize", {"messages": USER, "continue_final_message": True}, 400, "continue_final_message"),
        ("/tokenize", {"messages": USER, "chat_template": "x"}, 400, "chat_template"),
        ("/tokenize", {"prompt": "a", "tpyo": 1}, 400, "tpyo"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/detokenize", {"tokens": [256]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
        ("/detokenize", {}, 400, "tokens"),
    ],
)
def test_what_cannot_be_honoured_is_refused(path: str, body: dict[str, Any], status: int, param: str) -> None:
    answer = Site().send("POST", path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
