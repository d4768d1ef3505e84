"""Serve's request router with prefix affinity. One lives in each ingress replica, for each model.

Serve pickles this module by value; what it imports is found by name.
"""

import random
import time
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from serve_app.generation import GenerationJob
from serve_app.prefix_memory import PrefixMemory, prefix_ids, prompt_bytes
from serve_app.routing_choice import ReplicaPressure, expected_tokens, matched_bytes, ranked
from serve_app.unfinished_work import UnfinishedWork


class PrefixAffinityRouter(RequestRouter):
    """Keeps account of what it sent where; the choice itself is serve_app.routing_choice.

    A replica that is full is passed over by Serve's own check of queue lengths, which follows the order given here.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Serve calls it with imbalance_tokens, max_prefixes and told_within_s (serve_app.routing_settings)."""
        imbalance_tokens, max_prefixes = int(kwargs["imbalance_tokens"]), int(kwargs["max_prefixes"])
        self._imbalance_tokens = imbalance_tokens
        self._memory = PrefixMemory(max_prefixes)
        self._work = UnfinishedWork(float(kwargs["told_within_s"]))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve tells of those that there are, and of what they last told."""
        super().update_replicas(replicas)
        self._work.keep({replica.replica_id.unique_id for replica in replicas})

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Groups of one, in the order in which they are tried."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        job = _job_of(pending_request)
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        ids = [] if job is None else prefix_ids(prompt_bytes(job))
        matches = self._memory.matches(ids, replicas)
        pressures = self._pressures(replicas)
        # Of equals a random one, or all routers would send to the same.
        names = random.sample(sorted(pressures), len(pressures))
        order = ranked({name: pressures[name] for name in names}, matches, self._imbalance_tokens)
        if ids and order and not matches:
            # Already now: what begins alike and comes before the replica has accepted this one shall go the same way.
            self._memory.remember(ids, order[0])
        return [[replicas[name]] for name in order]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Serve has sent it."""
        job = _job_of(pending_request)
        if job is None:
            return
        prompt, replica = prompt_bytes(job), replica_id.unique_id
        ids = prefix_ids(prompt)
        new = len(prompt) - matched_bytes(self._memory.matches(ids, (replica,)), replica)
        self._memory.remember(ids, replica)
        tokens = expected_tokens(job, new)
        self._work.begin(replica, pending_request.metadata.internal_request_id, tokens, time.monotonic())

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """It has ended, however."""
        self._work.end(replica_id.unique_id, internal_request_id)

    def _pressures(self, replicas: dict[str, RunningReplica]) -> dict[str, ReplicaPressure]:
        now = time.monotonic()
        pressures: dict[str, ReplicaPressure] = {}
        for name, replica in replicas.items():
            own, stats = self._work.of(name, now), replica.routing_stats or {}
            told = stats.get("running", 0) + stats.get("waiting", 0)
            pressures[name] = ReplicaPressure(own.tokens, own.peak_requests, told, stats.get("kv_use", 0.0))
        return pressures


def _job_of(pending_request: PendingRequest | None) -> GenerationJob | None:
    """Of a call of `generate`; other calls go to the least loaded replica."""
    if pending_request is None or not pending_request.args:
        return None
    first = pending_request.args[0]
    return first if isinstance(first, GenerationJob) else None
