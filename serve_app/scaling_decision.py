"""How many replicas keep the time per output token below its target: a pure function of what they tell. No Ray."""

from dataclasses import dataclass, replace

FORGETTING = 0.98
"""What an observation of the curve still weighs after the next one."""
UNREACHABLE = 1.25
"""Where one stream alone misses the target, so many times what it gets is the target."""
MIN_SPREAD = 0.05
"""Variance of the batch size (sequences squared) below which no slope can be told."""


@dataclass(frozen=True, slots=True)
class ScalingTargets:
    """What a replica should stay below."""

    tpot_s: float
    """Seconds per output token."""
    max_num_seqs: int
    """Sequences that a replica runs at once."""
    max_kv_use: float = 0.9
    max_waiting_prompt_tokens: int = 4096
    upscale_at: float = 0.9
    """The part of each target above which replicas are added,"""
    downscale_at: float = 0.6
    """and that which the others must stay below after one is taken away."""
    lead_s: float = 15.0
    """A rising demand is extrapolated so far: what a new replica takes until it serves."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """One replica, over the window that is looked at."""

    running: float
    """Sequences, as last told."""
    waiting: float
    waiting_prompt_tokens: float
    kv_use: float
    """0 to 1, of the KV blocks."""
    batch_size: float | None = None
    """Mean number of decoding sequences while some were; None: nothing was decoded, or the replica is too young."""
    tpot_s: float | None = None
    """Mean seconds per output token of those."""
    num_speculative_tokens: int = 0
    """K in force."""


@dataclass(frozen=True, slots=True)
class DeploymentLoad:
    """All replicas of a model, and what waits before them."""

    replicas: tuple[ReplicaLoad, ...]
    num_silent: int
    """Replicas that run but have told nothing yet."""
    queued: float
    """Requests that no replica has taken yet."""
    target_replicas: int
    """Those that run or are being started."""
    demand_slope: float = 0.0
    """Sequences, running, waiting and queued, a second: how fast they become more."""
    peak_demand: float = 0.0
    """The most of them in the window."""


@dataclass(frozen=True, slots=True)
class TpotCurve:
    """Seconds per output token by batch size, for one K: sums of a least-squares line whose past fades."""

    num_speculative_tokens: int = 0
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def observed(self, batch_size: float, tpot_s: float, num_speculative_tokens: int) -> "TpotCurve":
        """With one more point; another K is another curve."""
        old = self if num_speculative_tokens == self.num_speculative_tokens else TpotCurve(num_speculative_tokens)
        return replace(
            old,
            weight=old.weight * FORGETTING + 1,
            x=old.x * FORGETTING + batch_size,
            y=old.y * FORGETTING + tpot_s,
            xx=old.xx * FORGETTING + batch_size * batch_size,
            xy=old.xy * FORGETTING + batch_size * tpot_s,
        )

    @property
    def has_slope(self) -> bool:
        """True if batches of different sizes were seen."""
        return self._spread >= MIN_SPREAD

    @property
    def _spread(self) -> float:
        return self.xx / self.weight - (self.x / self.weight) ** 2 if self.weight else 0.0

    def at(self, batch_size: float) -> float:
        """Expected seconds per token; on the safe side where too little was seen. 0 if nothing was."""
        if self.weight == 0:
            return 0.0
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        spread = self._spread
        # A step never becomes faster with more sequences, nor slower than in proportion to them.
        steepest = mean_y / mean_x
        if spread < MIN_SPREAD:
            slope = steepest if batch_size > mean_x else 0.0
        else:
            slope = min(max((self.xy / self.weight - mean_x * mean_y) / spread, 0.0), steepest)
        return mean_y + slope * (batch_size - mean_x)


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas, and why."""

    num_replicas: int
    reason: str = "steady"


def learned(curve: TpotCurve, load: DeploymentLoad) -> TpotCurve:
    """`curve` with what the replicas of `load` observed. Once a report: the same one twice would count twice."""
    for seen in load.replicas:
        if seen.tpot_s is not None and seen.batch_size is not None:
            curve = curve.observed(seen.batch_size, seen.tpot_s, seen.num_speculative_tokens)
    return curve


def decide(
    load: DeploymentLoad, targets: ScalingTargets, curve: TpotCurve, min_replicas: int, max_replicas: int
) -> Decision:
    """The replicas that `load` wants, within the bounds.

    More when the demand expected at the time that a new replica would serve puts a target's `upscale_at` out of
    reach; fewer when the peak of the window leaves the others below `downscale_at`. Between the two nothing changes.
    """
    demand = load.queued + sum(each.running + each.waiting for each in load.replicas)
    # At most twice what is there: a load that begins looks like a steep rise, whose end nobody knows.
    expected = demand + min(max(0.0, load.demand_slope) * targets.lead_s, demand)
    now = load.target_replicas
    wanted, reason = _fewest(load, targets, curve, expected, targets.upscale_at, max_replicas)
    slowest = max((each.tpot_s for each in load.replicas if each.tpot_s is not None), default=0.0)
    everybody_tells = load.num_silent == 0 and len(load.replicas) >= now
    is_slow = slowest > _tpot_limit(targets, curve, targets.upscale_at)
    if everybody_tells and is_slow and demand > now:
        # Whatever the curve expects: it is too slow already, and a sequence less a replica can still be had.
        wanted, reason = max(wanted, now + 1), "observed TPOT"
    if not curve.has_slope:
        # A guess is believed for one replica more than serve, until it has been seen whether that helped.
        wanted = min(wanted, max(now, len(load.replicas) + load.num_silent + 1))
    if wanted > now:
        return Decision(max(min_replicas, min(wanted, max_replicas)), reason)
    peak = max(load.peak_demand, expected)
    kept, reason = _fewest(load, targets, curve, peak, targets.downscale_at, max_replicas)
    if kept < now and everybody_tells:
        return Decision(max(min_replicas, min(kept, max_replicas)), f"fewer: {reason}")
    return Decision(max(min_replicas, min(now, max_replicas)))


def _fewest(
    load: DeploymentLoad, targets: ScalingTargets, curve: TpotCurve, demand: float, part: float, most: int
) -> tuple[int, str]:
    """The fewest replicas that hold `demand` sequences below `part` of each target, and which target says so."""
    if demand <= 0:
        return 0, "no demand"
    told = len(load.replicas)
    kv_use = sum(each.kv_use for each in load.replicas)
    running = sum(each.running for each in load.replicas)
    prompt_tokens = sum(each.waiting_prompt_tokens for each in load.replicas)
    if told:
        # What waits takes as much KV as what runs, once it does.
        kv_use *= max(1.0, demand / running) if running else 1.0
    reason, tpot_limit = "one holds it", _tpot_limit(targets, curve, part)
    for count in range(1, most + 1):
        # A replica holds whole sequences, of which the fullest one decides; below one a replica nothing gets faster.
        batch = max(1.0, demand / count)
        if demand / count > targets.max_num_seqs * part:
            reason = "sequences"
        elif kv_use / count > targets.max_kv_use * part and demand > count:
            reason = "KV use"
        elif prompt_tokens / count > targets.max_waiting_prompt_tokens * part and demand > count:
            reason = "waiting prompt tokens"
        elif batch > 1 and curve.at(batch) > tpot_limit:
            reason = "expected TPOT"
        else:
            return count, reason
    return most, reason


def _tpot_limit(targets: ScalingTargets, curve: TpotCurve, part: float) -> float:
    limit = targets.tpot_s * part
    return max(limit, curve.at(1) * UNREACHABLE) if curve.has_slope else limit
