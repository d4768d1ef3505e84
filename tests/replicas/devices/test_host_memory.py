from pathlib import Path

import psutil

from replicas.devices.host_memory import available_memory


def test_without_a_container_it_is_what_the_machine_has(tmp_path: Path) -> None:
    assert 0 < available_memory(tmp_path) <= psutil.virtual_memory().total


def test_a_container_s_limit_counts_less_what_is_used_but_for_cached_files(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("70000\n")
    (tmp_path / "memory.stat").write_text("anon 30000\ninactive_file 25000\nactive_file 5000\n")
    (tmp_path / "memory.max").write_text("100000\n")
    assert available_memory(tmp_path) == 55000
    (tmp_path / "memory.max").write_text("20000\n")
    assert available_memory(tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 100000
