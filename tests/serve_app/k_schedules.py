"""K schedules for tests."""

from pathlib import Path
from typing import Any

import yaml

from serve_app.k_schedule import KSchedule

FIELDS: dict[str, Any] = {
    "model": "m",
    "device": "cpu",
    "method": "eagle3",
    "buckets": [{"from_batch": 1, "k": 3}, {"from_batch": 4, "k": 1}, {"from_batch": 8, "k": 0}],
    "best_fixed_k": 2,
    "hold_steps": 3,
    "acceptance_by_position": [0.5, 0.25, 0.125],
    "step_ms": {1: {0: 10.0, 1: 11.0, 2: 12.0, 3: 13.0}, 8: {0: 20.0, 1: 30.0, 2: 40.0, 3: 50.0}},
}


def schedule(**changes: Any) -> KSchedule:
    return KSchedule.model_validate(FIELDS | changes)


def write_schedule(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(FIELDS | changes))
    return path
