"""Options of a load, before locust has a part in it."""

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.load.load_options import LoadOptions
from benchmarks.workloads import OWN_PROMPTS
from replicas.errors import ConfigError
from tests.benchmarks.load.openai_server import OpenAiServer

OPTIONS = Namespace(
    model="",
    max_tokens=64,
    no_stream=False,
    ignore_eos=False,
    arrivals="closed",
    rate=0.5,
    prompts=str(OWN_PROMPTS),
    seed=0,
    out="",
    users=3,
)


def test_a_form_goes_before_the_command_line_and_keeps_the_types() -> None:
    form = {
        "max_tokens": "9",
        "ignore_eos": "true",
        "arrivals": "poisson",
        "rate": "2",
        "host": "http://a",
        "users": "9",
    }
    found = LoadOptions.of(OPTIONS, "http://b", form)
    assert (found.host, found.max_tokens, found.ignore_eos, found.rate) == ("http://a", 9, True, 2.0)
    assert LoadOptions.of(OPTIONS, "http://b").host == "http://b"
    # The options themselves are locust's to change.
    assert OPTIONS.max_tokens == 64


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"host": ""}, "--host: got none; allowed: the server's address, as http://127.0.0.1:8000"),
        ({"arrivals": "random"}, "--arrivals: got 'random'; allowed: closed, poisson"),
        ({"arrivals": "poisson", "rate": "nan"}, "--rate: got nan; allowed: requests a second above 0"),
        ({"max_tokens": "many"}, "--max-tokens: got 'many'; allowed: a whole number"),
    ],
)
def test_what_is_wrong_is_one_sentence(form: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LoadOptions.of(OPTIONS, "http://a", form)
    assert str(caught.value) == sentence


def test_a_recording_begins_with_the_servers_first_model(tmp_path: Path) -> None:
    with OpenAiServer().running() as server:
        recording = LoadOptions.of(OPTIONS, server.url, {"max_tokens": "9"}).recording()
        assert (recording.settings.model, recording.settings.max_tokens, recording.arrivals) == ("tiny", 9, "closed")
        assert recording.one(1).failure is None
        empty = tmp_path / "empty.jsonl"
        empty.write_text("\n")
        for prompts, sentence in ((str(empty), "holds no prompt"), ("nowhere", "cannot be read")):
            with pytest.raises(ConfigError, match=f"--prompts: '{prompts}' {sentence}"):
                LoadOptions.of(OPTIONS, server.url, {"prompts": prompts}).recording()


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"http://127.0.0.1:9: its /v1/models names none"):
        LoadOptions.of(OPTIONS, "http://127.0.0.1:9").recording()
