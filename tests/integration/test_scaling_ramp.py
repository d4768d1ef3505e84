"""The ramp over HTTP, on a served tiny model whose replicas come and go."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.load.stages import stages
from benchmarks.results import read_results
from tests.integration.script_answer import VARIABLES
from tests.integration.serve_process import PROJECT_ROOT, steady_ports
from tests.reference.tiny_checkpoints import write_target

pytestmark = [pytest.mark.scaling, pytest.mark.timeout(600)]


def test_a_ramp_is_recorded_with_the_replicas_that_served_it(tmp_path: Path) -> None:
    target, [port] = tmp_path / "target", steady_ports(1)
    target.mkdir()
    write_target(target)
    (target / "chat_template.jinja").write_text("say {{ messages[0].content }}")
    config = yaml.safe_load((PROJECT_ROOT / "configs" / "scaling.yaml").read_text(encoding="utf-8"))
    config["http_options"]["port"] = port
    [model] = config["applications"][0]["args"]["models"]
    del model["speculative_config"]
    model |= {"id": "tiny", "model": str(target), "dtype": "float32", "max_model_len": 1024}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    out = tmp_path / "rows.jsonl"
    options = ("--step-s", "10", "--hold-s", "40", "--quiet-s", "60", "--max-tokens", "128")
    command = [sys.executable, "-m", "benchmarks.load.scaling_ramp", str(tmp_path / "config.yaml")]
    ended = subprocess.run(
        [*command, "--out", str(out), "--port", str(port), *options],
        env={**os.environ, **VARIABLES},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    print(ended.stdout[-2000:])
    rows = read_results(out)
    found = stages(rows.requests, rows.fleets)
    assert [one.users for one in found] == [1, 7, 12, 1]
    counts = [count for one in found for count in one.replicas]
    assert (counts[0], max(counts), counts[-1]) == (1, 3, 1)
    assert all(one.requests for one in found)
    # Refused with 429 where replicas are yet to come, and never otherwise.
    assert sum(one.failed for one in found) == 0
    assert found[0].refused == found[-1].refused == 0
    assert "failed otherwise" in ended.stdout
