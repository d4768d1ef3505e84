"""Our own engine, by its config: with its K schedule, or with any K.

python -m benchmarks.peers.workers.eyrie CONFIG MODEL LARGEST_K
"""

import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.engine_client import ChosenPolicy, engine_for_measuring, run_together
from benchmarks.peers.lines import Ask, Told, serve
from replicas.engine import build_engine
from replicas.request import SamplingParams
from replicas.scheduling.k_policy import KPolicy
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.k_policy import FixedK, k_policy_of
from serve_app.serve_config import load_own_model

SCHEDULE = "schedule"


class Eyrie:
    """The engine of model `model` in the Serve YAML `config`, for up to `largest_k` draft tokens a step."""

    def __init__(self, config: Path, model: str, largest_k: int) -> None:
        self._settings = load_own_model(config, model)
        self._policy = ChosenPolicy(FixedK(0))
        adapted = engine_for_measuring(with_local_checkpoints(self._settings.engine_config), largest_k)
        self._engine = build_engine(adapted, self._policy)
        self._engine.warm_up()

    @property
    def versions(self) -> dict[str, str]:
        """See Peer."""
        return {"torch": version("torch")}

    def answer(self, ask: Ask) -> Told:
        """See Peer; the mode is SCHEDULE or a K."""
        self._policy.current = self._policy_of(ask.mode)
        sampling = SamplingParams(temperature=0, max_tokens=ask.tokens, ignore_eos=not ask.may_end)
        (one,) = run_together(self._engine, [ask.prompt], sampling, 1).answers
        return Told([(chunk.seconds, chunk.tokens) for chunk in one.trace.chunks], list(one.token_ids))

    def _policy_of(self, mode: str) -> KPolicy:
        return k_policy_of(self._settings) if mode == SCHEDULE else FixedK(int(mode or 0))


if __name__ == "__main__":
    serve(lambda: Eyrie(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
