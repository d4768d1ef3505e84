"""Serve's request router with prefix affinity. One lives in each ingress replica, for each model.

Serve pickles this module by value; what it imports is found by name.
"""

import random
from collections import Counter, defaultdict, deque
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from serve_app.generation import GenerationJob
from serve_app.prefix_memory import PrefixMemory, prefix_ids, prompt_bytes
from serve_app.routing_choice import ReplicaPressure, expected_tokens, matched_bytes, ranked


class PrefixAffinityRouter(RequestRouter):
    """Keeps account of what it sent where; the choice itself is serve_app.routing_choice.

    A replica that is full is passed over by Serve's own check of queue lengths, which follows the order given here.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Serve calls it with imbalance_tokens and max_prefixes (serve_app.routing_settings)."""
        imbalance_tokens, max_prefixes = int(kwargs["imbalance_tokens"]), int(kwargs["max_prefixes"])
        self._imbalance_tokens = imbalance_tokens
        self._memory = PrefixMemory(max_prefixes)
        self._tokens: dict[tuple[str, str], float] = {}
        """Of unfinished requests, by replica and request."""
        self._ended_first: deque[tuple[str, str]] = deque(maxlen=64)
        """Requests that Serve told the end of before, or without, their begin."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Groups of one, in the order in which they are tried."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        job = _job_of(pending_request)
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        matches = {} if job is None else self._memory.matches(prefix_ids(prompt_bytes(job)), replicas)
        pressures = self._pressures(replicas)
        # Of equals a random one, or all routers would send to the same.
        names = random.sample(sorted(pressures), len(pressures))
        order = ranked({name: pressures[name] for name in names}, matches, self._imbalance_tokens)
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
        key = replica, pending_request.metadata.internal_request_id
        if key in self._ended_first:
            self._ended_first.remove(key)
        else:
            self._tokens[key] = expected_tokens(job, new)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """It has ended, however."""
        key = replica_id.unique_id, internal_request_id
        if self._tokens.pop(key, None) is None:
            self._ended_first.append(key)

    def _pressures(self, replicas: dict[str, RunningReplica]) -> dict[str, ReplicaPressure]:
        tokens, requests = defaultdict[str, float](float), Counter[str]()
        for (replica, _), count in self._tokens.items():
            tokens[replica] += count
            requests[replica] += 1
        return {
            name: ReplicaPressure(
                tokens[name],
                requests[name],
                stats.get("running", 0) + stats.get("waiting", 0),
                stats.get("kv_use", 0.0),
            )
            for name, replica in replicas.items()
            for stats in (replica.routing_stats or {},)
        }


def _job_of(pending_request: PendingRequest | None) -> GenerationJob | None:
    """Of a call of `generate`; other calls go to the least loaded replica."""
    if pending_request is None or not pending_request.args:
        return None
    first = pending_request.args[0]
    return first if isinstance(first, GenerationJob) else None
