"""What the engine asks of whoever runs its plans: one rank, or several."""

from typing import Protocol

from replicas.scheduling.step_plan import StepPlan, StepResult


class StepRunner(Protocol):
    """Runs plans on a device, or on a group of them."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run every batch of `plan`."""
        ...

    def warm_up(self) -> int:
        """Run every program once, or where nothing is compiled the largest; returns how many ran."""
        ...

    @property
    def num_programs(self) -> int:
        """Different programs that ran so far."""
        ...

    @property
    def num_new_programs(self) -> int:
        """Those that ran first after warm-up: 0 where programs are compiled."""
        ...

    def check_health(self) -> None:
        """Raises EngineDeadError if no plan can run any more. Callable from any thread."""
        ...

    def close(self) -> None:
        """Release what is not memory: processes of other ranks."""
        ...
