"""The comparison as Markdown: the table, what to use, and why."""

from collections.abc import Sequence

from benchmarks.compare.figures import Figures

HEAD = (
    "drafter", "K", "accepted by position", "accepted (alpha)", "tokens a step = bound 1 + alpha K", "drafts ms",
    "verify ms", "drafts / verify", "seed's formula", "measured", "quartiles", "matched",
)  # fmt: skip
NOTES = """
All modes answer each prompt next to each other, in random order, one request at a time, greedy.

* *bound*: the seed's, the speed-up if drafts and verifying 1 + K tokens cost nothing extra.
* *drafts / verify*: all drafts of a step over the target's forward that checks them.
* *seed's formula*: bound / (1 + drafts / verify). Like the bound it takes verifying 1 + K tokens to cost no more than
  decoding one; what it does cost more is most of the difference to *measured*.
* *measured*: end to end against K = 0, prefill included: median over prompts of the ratio of paired answers.
* *matched*: true if every answer has the tokens of K = 0; otherwise how many differ, and by which gap of the target's
  logits at the first difference: below 0.01 the order of additions can have swapped two tokens.
"""
SITUATIONS = {
    "small": "A small model with the same tokenizer at hand",
    "draft_model": "A small model with the same tokenizer at hand",
    "eagle3": "A target as it is, and a head trained for it",
    "mtp": "A target with an MTP layer, its own or one trained afterwards",
    "ngram": "Nothing to train or load",
}
"""The rows of the second seed's selection table (section 5), and the baseline without a model."""


def table(all_figures: Sequence[Figures]) -> str:
    """One row a drafter and K."""
    rows = [HEAD, ("---",) * len(HEAD), *(_row(one) for one in all_figures)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(one: Figures) -> tuple[str, ...]:
    return (
        one.name,
        str(one.k),
        " ".join(f"{share:.2f}" for share in one.acceptance_by_position),
        f"{one.acceptance_rate:.2f}",
        f"{one.mean_acceptance_length:.2f}",
        f"{1e3 * one.draft_seconds:.2f}",
        f"{1e3 * one.verify_seconds:.2f}",
        f"{one.draft_over_verify:.2f}",
        f"{one.formula:.2f}",
        f"{one.speedup:.2f}",
        f"{one.speedup_quartiles[0]:.2f} to {one.speedup_quartiles[1]:.2f}",
        matched(one),
    )


def matched(one: Figures) -> str:
    """`true`, or what differs."""
    if one.matched:
        return "true"
    kind = "near-ties" if all(difference.is_near_tie for difference in one.differences) else "different"
    widest = max(difference.gap for difference in one.differences)
    return f"{kind}: {len(one.differences)}, logit gap up to {widest:.4f}"


def advice(all_figures: Sequence[Figures]) -> str:
    """Which drafter and K to use, then one sentence on each drafter and one on each that loses somewhere."""
    best = max(all_figures, key=lambda one: one.speedup)
    names = list(dict.fromkeys(one.name for one in all_figures))
    if best.speedup > 1:
        first = (
            f"Use {best.name} with K = {best.k}: answers come {best.speedup:.2f} times as fast as without drafts, "
            f"the most of the {len(all_figures)} modes measured."
        )
    else:
        first = (
            f"Use no drafter: the best of the {len(all_figures)} modes measured, {best.name} with K = {best.k}, "
            f"gives {best.speedup:.2f} times the speed of plain decoding."
        )
    lines = [first, ""]
    for name in names:
        own = [one for one in all_figures if one.name == name]
        lines.append(f"* {SITUATIONS[name]}: {_best_of(own)}")
        losing = next((one for one in own if one.speedup < 1), None)
        if losing is not None:
            lines.append(f"  {_loss(losing)}")
    return "\n".join(lines)


def _best_of(own: Sequence[Figures]) -> str:
    top = max(own, key=lambda one: one.speedup)
    verdict = f"{top.name} with K = {top.k}, {top.speedup:.2f} times" if top.speedup > 1 else f"not {top.name}"
    tokens, cost = f"{top.mean_acceptance_length:.2f}", f"{top.step_over_plain:.2f}"
    return f"{verdict}, since a step gives {tokens} tokens in the time of {cost} plain steps."


def _loss(one: Figures) -> str:
    """As the second seed explains its small model: draft cost against acceptance."""
    forward = one.draft_over_verify / one.k
    return (
        f"{one.name} loses at K = {one.k} ({one.speedup:.2f} times): a draft costs {forward:.0%} of a verify, the "
        f"{one.k} of a step {one.draft_over_verify:.0%}, and {one.acceptance_rate:.0%} of them are accepted, so a step "
        f"costs {one.step_over_plain:.2f} plain ones and gives {one.mean_acceptance_length:.2f} tokens."
    )
