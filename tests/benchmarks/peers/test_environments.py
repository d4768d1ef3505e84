"""Where a peer's Python comes from."""

import sys
from pathlib import Path

import pytest

from benchmarks.peers import environments
from benchmarks.peers.environments import ENVIRONMENTS, interpreter, named_interpreters
from replicas.errors import ConfigError


def test_a_named_python_is_taken_as_it_is(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    named = named_interpreters([f"vllm={link}"])
    # Not what it links to: that is another environment.
    assert interpreter("vllm", named) == link


@pytest.mark.parametrize("pair", ["vllm", "nobody=/bin/sh", "vllm=/no/such/python"])
def test_a_wrong_name_or_place_is_one_sentence(pair: str) -> None:
    with pytest.raises(ConfigError, match=rf"--python: got '{pair}'; allowed: NAME=PATH of a Python that exists"):
        named_interpreters([pair])


def test_the_makefile_makes_each_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "PROJECT_ROOT", tmp_path)
    targets = [f"{folder}/installed" for folder in ENVIRONMENTS.values()]
    recipes = "".join(f"{target}:\n\t@mkdir -p $(@D); touch $@\n" for target in targets[1:])
    (tmp_path / "Makefile").write_text(f"{recipes}{targets[0]}:\n\t@exit 1\n")
    failing, *others = ENVIRONMENTS
    for name in others:
        assert interpreter(name, {}) == tmp_path / ENVIRONMENTS[name] / "bin" / "python"
        assert (tmp_path / ENVIRONMENTS[name] / "installed").exists()
    with pytest.raises(ConfigError, match=f"the environment of {failing} was not made"):
        interpreter(failing, {})


def test_the_projects_makefile_has_the_recipes() -> None:
    recipes = (environments.PROJECT_ROOT / "Makefile").read_text()
    for name, value in (("PEERS_VENVS", ".venv-peers"), ("VLLM_VENV", ".venv-vllm")):
        assert f"{name} := {value}\n" in recipes
        recipes = recipes.replace(f"$({name})", value)
    for folder in ENVIRONMENTS.values():
        assert f"\n{folder}/installed:" in recipes
