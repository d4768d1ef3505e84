"""The autoscaling policy `tpot`, as Serve's controller calls it: reads the context, decides with scaling_decision.

Serve pickles this module by value; what it imports is found by name, so the controller needs the package too.
"""

import logging
from collections.abc import Mapping
from typing import Any

from serve_app.autoscaling_settings import TpotScaling
from serve_app.load_series import ReplicaReport, deployment_load
from serve_app.scaling_decision import TpotCurve, decide, learned

TPOT_WINDOW_S = 10.0
"""Time per token is that of the last seconds: longer would show a change too late."""
CURVE, TOLD, DECIDED = "eyrie_tpot_curve", "eyrie_told_at", "eyrie_decided"
"""Keys of the policy's state, which Serve keeps between calls beside its own."""

logger = logging.getLogger("ray.serve")


class TpotPolicy:
    """One deployment's. Serve applies delays, and bounds again, to what it answers."""

    def __init__(self, settings: Mapping[str, Any], max_num_seqs: int) -> None:
        self._settings = TpotScaling.model_validate(settings)
        self._targets = self._settings.targets(max_num_seqs)

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """`context` is Serve's AutoscalingContext. Called every 0.1 s; replicas report less often."""
        state: dict[str, Any] = dict(context.policy_state)
        if context.current_num_replicas == 0:
            # From zero Serve itself starts the first one, for the first request, before it asks us.
            return context.target_num_replicas, state
        reports = _reports(context.raw_metrics or {})
        load = deployment_load(
            list(reports.values()),
            context.current_num_replicas,
            context.target_num_replicas,
            context.total_queued_requests or 0.0,
            self._settings.look_back_period_s,
            self._settings.ignore_first_s,
            TPOT_WINDOW_S,
        )
        curve = state.get(CURVE, TpotCurve())
        told = {str(replica): report.time for replica, report in reports.items()}
        if told != state.get(TOLD):
            curve = learned(curve, load)
        decision = decide(
            load,
            self._targets,
            curve,
            context.capacity_adjusted_min_replicas,
            context.capacity_adjusted_max_replicas,
        )
        if decision.num_replicas not in (context.target_num_replicas, state.get(DECIDED)):
            # Wanted, not done yet: Serve's delays come after it, and its log tells of what is done.
            logger.debug(
                "%s wants %d replicas instead of %d: %s",
                context.deployment_name,
                decision.num_replicas,
                context.target_num_replicas,
                decision.reason,
            )
        return decision.num_replicas, state | {CURVE: curve, TOLD: told, DECIDED: decision.num_replicas}


def _reports(raw_metrics: Mapping[str, Mapping[Any, Any]]) -> dict[Any, ReplicaReport]:
    """By replica. raw_metrics: by the figure's name, then by replica, Serve's points."""
    replicas = [replica for replica, points in raw_metrics.get("running", {}).items() if points]
    return {
        replica: ReplicaReport(
            {
                name: [(point.timestamp, point.value) for point in by_replica[replica]]
                for name, by_replica in raw_metrics.items()
                if replica in by_replica
            }
        )
        for replica in replicas
    }
