"""One revision of the engine, measured on command by benchmarks.check: a JSON line in is a task, one out its run."""

import sys
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.measurers import measurer
from benchmarks.measuring import Task
from benchmarks.results import Run
from benchmarks.sweep_config import load_sweep_config, measured_model
from serve_app.k_policy import FixedK

TASK: TypeAdapter[Task] = TypeAdapter(Task)
RUN: TypeAdapter[Run] = TypeAdapter(Run)
READY = b"ready\n"


def main() -> None:
    """Answer tasks until the input ends. The only argument is a sweep's YAML."""
    # What libraries print must not come between the rows.
    rows = sys.stdout.buffer
    sys.stdout = sys.stderr
    config = load_sweep_config(Path(sys.argv[1]))
    _, engine_config = measured_model(config)
    engine = measurer(config, engine_config)
    engine.warm_up()
    rows.write(READY)
    rows.flush()
    for line in sys.stdin.buffer:
        task = TASK.validate_json(line)
        rows.write(RUN.dump_json(engine.run(task, "check", FixedK(task.cell.k or 0))) + b"\n")
        rows.flush()


if __name__ == "__main__":
    main()
