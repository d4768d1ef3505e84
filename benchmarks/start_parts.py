"""Seconds that a new process takes for imports, for the engine of a config's first model, and for its warm-up.

    python -m benchmarks.start_parts configs/eagle3.yaml

`benchmarks.replica_start` runs it beside whole starts.
"""

import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path


def main(arguments: Sequence[str]) -> None:
    """Print one line of JSON."""
    begin = time.perf_counter()
    # Here, because they are what is timed; these two are what else a replica imports.
    import_module("replicas.async_engine")
    import_module("serve_app.replica_deployment")
    from replicas.engine import build_engine
    from serve_app.checkpoint_paths import with_local_checkpoints
    from serve_app.k_policy import k_policy_of
    from serve_app.serve_config import load_own_model

    imported = time.perf_counter()
    model = load_own_model(Path(arguments[0]))
    engine = build_engine(with_local_checkpoints(model.engine_config), k_policy_of(model))
    built = time.perf_counter()
    engine.warm_up()
    seconds = imported - begin, built - imported, time.perf_counter() - built
    names = ("imports_s", "engine_s", "warm_up_s")
    print(json.dumps({name: round(part, 2) for name, part in zip(names, seconds, strict=True)}))


if __name__ == "__main__":
    main(sys.argv[1:])
