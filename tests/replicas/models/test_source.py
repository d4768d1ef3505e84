"""Sources of models: folders, the hub, GGUF files and PyPI packages; each fault is one sentence."""

import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from replicas.errors import CheckpointError
from replicas.models import source
from replicas.models.source import converted, read_hf_config, resolve_model
from tests.reference.sentences import checkpoint_error, unresolved


class TestFolder:
    def test_it_is_returned_as_given(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        assert resolve_model(str(tmp_path)) == tmp_path

    def test_without_config_json(self, tmp_path: Path) -> None:
        message = unresolved(str(tmp_path))
        assert str(tmp_path) in message
        assert "config.json" in message

    def test_a_file_is_no_model(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        path.write_bytes(b"")
        assert str(path) in unresolved(str(path))

    @pytest.mark.parametrize("unknown", ["smollm2", "a/b/c", "/no/such/folder", "./org/name"])
    def test_an_unknown_source_names_the_choices(
        self, unknown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        message = unresolved(unknown)
        assert repr(unknown) in message
        assert "pypi:PACKAGE" in message


class TestHub:
    @pytest.fixture
    def hub_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def test_a_cached_snapshot_is_found(self, hub_cache: Path) -> None:
        commit = "0123456789" * 4
        root = hub_cache / "models--org--tiny-1.5"
        snapshot = root / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(commit)
        (snapshot / "config.json").write_text("{}")
        assert resolve_model("org/tiny-1.5") == snapshot

        (snapshot / "config.json").unlink()
        assert "'org/tiny-1.5' has no config.json" in unresolved("org/tiny-1.5")

    def test_not_to_be_had(self, hub_cache: Path) -> None:
        message = unresolved("org/absent")
        assert "'org/absent' is neither a local folder nor to be had from the hub" in message


class TestCache:
    def test_many_at_once_write_once(self, cache: Path) -> None:
        start = threading.Barrier(4)
        fills: list[Path] = []
        folders: list[Path] = []

        def fill(folder: Path, _: object) -> None:
            fills.append(folder)
            (folder / "config.json").write_text("{}")

        def resolve() -> None:
            start.wait()
            folders.append(converted("name", fill))

        threads = [threading.Thread(target=resolve) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(fills) == 1
        assert set(folders) == {cache / "name-v1"}
        assert len(folders) == 4
        assert fills[0] != folders[0]

    def test_what_a_killed_process_left_is_replaced(self, cache: Path) -> None:
        left = cache / "name-v1.partial"
        left.mkdir(parents=True)
        (left / "model.safetensors").write_text("half")
        folder = converted("name", lambda folder, _: (folder / "config.json").touch())
        assert sorted(path.name for path in folder.iterdir()) == ["config.json"]
        assert not left.exists()

    def test_a_failure_leaves_nothing_and_is_tried_again(self, cache: Path) -> None:
        def fail(folder: Path, _: object) -> None:
            (folder / "half").write_text("")
            raise CheckpointError("no")

        with pytest.raises(CheckpointError, match=r"^no$"):
            converted("name", fail)
        assert [path.name for path in cache.iterdir() if path.is_dir()] == []
        assert converted("name", lambda folder, _: (folder / "whole").touch()).joinpath("whole").exists()

    def test_a_cache_that_cannot_be_written_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("EYRIE_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(CheckpointError, match="EYRIE_CACHE") as caught:
            converted("name", lambda folder, _: None)
        assert str(tmp_path / "file") in str(caught.value)


class TestPackage:
    @pytest.fixture
    def convert(self, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
        """Stands for the conversion: keeps what it was given."""
        given: list[bytes] = []

        def keep(source: Path, folder: Path, _: object) -> None:
            given.append(source.read_bytes())
            (folder / "config.json").write_text("{}")

        monkeypatch.setattr(source, "convert", keep)
        return given

    @staticmethod
    def install(site: Path, files: list[str]) -> None:
        info = site / "eyrie_tiny_model-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: eyrie-tiny-model\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(f"eyrie_tiny_model/{file},,\n" for file in files))
        (site / "eyrie_tiny_model").mkdir()
        for file in files:
            (site / "eyrie_tiny_model" / file).write_text(file)

    def test_an_installed_one_is_used(
        self, tmp_path: Path, cache: Path, convert: list[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.install(tmp_path, ["a.gguf", "a.py"])
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(source, "download_wheel", lambda *_: pytest.fail("downloaded"))
        assert resolve_model("pypi:Eyrie_tiny.model").name.startswith("a-")
        assert convert == [b"a.gguf"]

    @pytest.mark.parametrize(("files", "held"), [(["a.py"], "none"), (["b.gguf", "a.gguf"], "a.gguf, b.gguf")])
    def test_it_must_hold_one_gguf(
        self, files: list[str], held: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.install(tmp_path, files)
        monkeypatch.syspath_prepend(tmp_path)
        message = unresolved("pypi:eyrie-tiny-model")
        assert "'eyrie-tiny-model' must hold exactly one .gguf file" in message
        assert message.endswith(held)

    def test_another_is_downloaded_once_without_its_dependencies(
        self, tmp_path: Path, cache: Path, convert: list[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        index = tmp_path / "index"
        index.mkdir()
        name, info = "eyrie_tiny_model-1.0-py3-none-any.whl", "eyrie_tiny_model-1.0.dist-info"
        with zipfile.ZipFile(index / name, "w") as wheel:
            wheel.writestr("eyrie_tiny_model/b.gguf", "weights")
            needs = "Requires-Dist: eyrie-no-such-package"
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: eyrie-tiny-model\nVersion: 1.0\n{needs}\n"
            )
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(index))
        folder = resolve_model("pypi:eyrie-tiny-model")
        (index / name).unlink()
        assert resolve_model("pypi:eyrie_tiny_model") == folder == cache / "pypi-eyrie-tiny-model-v1"
        assert convert == [b"weights"]

    def test_not_to_be_had(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        message = unresolved("pypi:eyrie-no-such-package")
        assert "'eyrie-no-such-package' is neither installed nor to be had by pip download" in message
        assert "No matching distribution" in message

    @pytest.mark.parametrize("name", ["", "--help", "a b", "../x", "a==1"])
    def test_what_is_no_name_reaches_no_command(self, name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(source, "download_wheel", lambda *_: pytest.fail("downloaded"))
        assert f"pypi:{name} names no package" in unresolved(f"pypi:{name}")


class TestConfig:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, "config.json is missing"),
            ("{", "config.json is not JSON"),
            ("[]", "has no field 'model_type'"),
            ("{}", "has no field 'model_type'"),
            ('{"model_type": "nosuch"}', "model_type 'nosuch'"),
            ('{"model_type": "llama", "hidden_size": "wide"}', "hidden_size"),
        ],
    )
    def test_faults_name_file_and_field(self, text: str | None, message: str, tmp_path: Path) -> None:
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        sentence = checkpoint_error(lambda: read_hf_config(tmp_path))
        assert str(tmp_path / "config.json") in sentence
        assert message in sentence

    def test_the_demo_model(self, demo_model_folder: Path) -> None:
        config: Any = read_hf_config(demo_model_folder)
        assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("llama", 30, 576)
        assert (config.vocab_size, config.eos_token_id, config.tie_word_embeddings) == (49152, 2, True)
        assert config.rope_parameters["rope_theta"] == 100000.0


class TestCommandLine:
    def test_it_prints_the_folder_without_loading_torch(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        code = (
            "import sys; from replicas.models.source import main; main(); "
            "assert not {'torch', 'transformers'} & {*sys.modules}"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
        assert done.stdout == f"{tmp_path}\n"

    def test_a_fault_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["source", "no such model"])
        with pytest.raises(SystemExit) as caught:
            source.main()
        assert str(caught.value.code).startswith("error: model 'no such model' is not known")
