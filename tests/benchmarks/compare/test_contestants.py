"""What a command line names."""

from pathlib import Path

import pytest

from benchmarks.compare.contestants import alone, contestants, ks_of
from replicas.config import SpeculativeConfig
from replicas.errors import ConfigError
from serve_app.settings import ModelSettings


def model(**fields: object) -> ModelSettings:
    return ModelSettings.model_validate({"id": "tiny", "model": "target", "max_num_seqs": 4} | fields)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with drafters of model `tiny`, and one of its config."""
    monkeypatch.chdir(tmp_path)
    for name in ("tiny-small", "tiny-eagle3", "another", "own"):
        (tmp_path / "configs/drafters" / name).mkdir(parents=True)
    return tmp_path / "configs/drafters"


def test_folders_are_those_given_then_the_config_s_then_the_model_s(folders: Path) -> None:
    own = {"method": "eagle3", "model": "configs/drafters/own", "num_speculative_tokens": 3}
    found = contestants("small,eagle3,ngram,mtp", 6, model(speculative_config=own))
    assert [(one.name, one.speculative) for one in found] == [
        ("small", SpeculativeConfig(method="draft_model", model=str(folders / "tiny-small"), num_speculative_tokens=6)),
        ("eagle3", SpeculativeConfig(method="eagle3", model=str(folders / "own"), num_speculative_tokens=6)),
        ("ngram", SpeculativeConfig(method="ngram", num_speculative_tokens=6)),
        ("mtp", SpeculativeConfig(method="mtp", num_speculative_tokens=6)),
    ]
    given = contestants("eagle3=configs/drafters/another", 2, model(speculative_config=own))
    assert given[0].speculative.model == str(folders / "another")
    assert contestants("eagle3", 2, model())[0].speculative.model == str(folders / "tiny-eagle3")


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (
            "medusa",
            "--drafter: got 'medusa'; allowed: small, draft_model, eagle3, mtp, ngram, each",
        ),
        ("ngram,ngram", "--drafter: got 'ngram,ngram'; allowed: distinct names"),
        ("small=absent/a/folder", "--drafter small: checkpoint 'absent/a/folder' is neither a file nor a folder"),
        ("mtp=absent/a/layer", "--drafter mtp: checkpoint 'absent/a/layer' is neither a file nor a folder"),
    ],
)
def test_what_cannot_be_had_is_named(names: str, sentence: str, folders: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        contestants(names, 2, model())
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(("text", "ks"), [("1..4", [1, 2, 3, 4]), ("3", [3]), ("8,1,2", [1, 2, 8]), ("5..5", [5])])
def test_ks(text: str, ks: list[int]) -> None:
    assert ks_of(text) == ks


@pytest.mark.parametrize("text", ["", "0", "0..3", "4..1", "1..17", "1-3", "two"])
def test_other_ks_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--k: got .*; allowed: 1..8 or 1,2,4, between 1 and 16"):
        ks_of(text)


def test_an_engine_for_one_sequence_without_a_cache() -> None:
    speculative = SpeculativeConfig(method="ngram", num_speculative_tokens=6)
    config = alone(model(num_blocks=900).engine_config, speculative)
    assert (config.max_num_seqs, config.num_blocks, config.enable_prefix_caching) == (1, None, False)
    assert config.speculative_config == speculative
