"""The files in configs/k_schedules: K by batch size, as benchmarks.write_k_schedule measured it."""

from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from replicas.config import MAX_SPECULATIVE_TOKENS
from replicas.errors import ConfigError
from serve_app.validation_sentences import WHOLE, sentences

K = Annotated[int, Field(ge=0, le=MAX_SPECULATIVE_TOKENS)]
Batch = Annotated[int, Field(ge=1)]
Milliseconds = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KBucket(_Part):
    """Batch sizes from one on, up to the next bucket's."""

    from_batch: Batch
    k: K


class KSchedule(_Part):
    """K by the number of decoding sequences, and what it was chosen from."""

    model: str
    """The id of the model that was measured."""
    engine: str = "eyrie"
    """Which measured it."""
    device: str
    method: str
    """The drafter's."""
    buckets: Annotated[list[KBucket], Field(min_length=1)]
    """Ascending, the first from 1."""
    best_fixed_k: K
    """The best single K over all measured batches, which the schedule is compared with."""
    hold_steps: Annotated[int, Field(ge=1)] = 4
    """Steps for which another bucket has to be the batch's before K changes: a batch on the edge does not flap."""
    acceptance_by_position: list[Rate]
    """Share of the steps whose drafts were accepted up to position 1, 2, ..."""
    step_ms: dict[Batch, dict[K, Milliseconds]]
    """Measured T(batch, K); the live policy weighs K by it."""
    provenance: dict[str, str] = {}

    @model_validator(mode="after")
    def _ascends_from_one(self) -> Self:
        starts = [bucket.from_batch for bucket in self.buckets]
        if starts[0] != 1:
            raise ValueError(f"buckets[0].from_batch is {starts[0]}; allowed: 1, so that every batch has a K")
        for before, after in pairwise(starts):
            if after <= before:
                raise ValueError(f"buckets: from_batch {after} follows {before}; allowed: ascending ones")
        for before, after in pairwise(self.acceptance_by_position):
            if after > before:
                raise ValueError(
                    f"acceptance_by_position: {after} follows {before}; a later position is never accepted more often"
                )
        return self

    @property
    def largest_k(self) -> int:
        """Of all buckets."""
        return max(bucket.k for bucket in self.buckets)

    def k_of(self, batch_size: int) -> int:
        """K for `batch_size` sequences; an empty batch is taken for the smallest."""
        starts = [bucket.from_batch for bucket in self.buckets]
        return self.buckets[bisect_right(starts, max(batch_size, 1)) - 1].k


def load_k_schedule(path: Path) -> KSchedule:
    """The schedule at `path`. Raises ConfigError, one line a problem."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the K schedule {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"the K schedule {path} is not YAML: {' '.join(str(error).split())}") from None
    try:
        return KSchedule.model_validate(data)
    except ValidationError as error:
        lines = (line.removeprefix(f"{WHOLE}: ") for line in sentences(error, KSchedule))
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from None
