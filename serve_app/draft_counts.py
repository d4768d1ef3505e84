"""What became of all drafts of an engine, by their position in a step."""

from dataclasses import dataclass, field

from replicas.scheduling.k_policy import DraftFeedback


@dataclass(slots=True)
class DraftCounts:
    """Sums so far. The engine's thread adds, any other may read: each figure by itself is whole."""

    sequences: int = 0
    """Decode steps, a sequence, that had drafts to verify."""
    drafted: list[int] = field(default_factory=list[int])
    """Drafts verified at position 1, 2, ..."""
    accepted: list[int] = field(default_factory=list[int])
    """Of them, those accepted with all before them."""

    def add(self, feedback: DraftFeedback) -> None:
        """Take over one decode step."""
        missing = len(feedback.drafted_by_position) - len(self.drafted)
        if missing > 0:
            self.drafted += [0] * missing
            self.accepted += [0] * missing
        self.sequences += feedback.drafted_by_position[0] if feedback.drafted_by_position else 0
        for position, count in enumerate(feedback.drafted_by_position):
            self.drafted[position] += count
        for position, count in enumerate(feedback.accepted_by_position):
            self.accepted[position] += count
