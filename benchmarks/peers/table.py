"""The table of a race, and its place in the README."""

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.contestants import OURS
from benchmarks.peers.figures import RaceFigures, race_figures
from benchmarks.results import Results, Session
from benchmarks.table import Table
from replicas.errors import ConfigError
from serve_app.checkpoint_paths import PROJECT_ROOT

README = PROJECT_ROOT / "README.md"
PUBLISHED = PROJECT_ROOT / "docs" / "measured" / "peers.jsonl"
"""The rows that the README's table is made of."""
BEGIN = "<!-- `make bench` writes what follows, of docs/measured/peers.jsonl -->"
END = "<!-- /make bench -->"


def race_table(figures: Sequence[RaceFigures]) -> Table:
    """A row a contestant."""
    head = ("engine", "TPOT ms", "Eyrie's TPOT over it", "95 %", "TTFT ms", "tokens a step", "same text")
    return Table(head, [_row(one) for one in figures])


def _row(one: RaceFigures) -> tuple[str, ...]:
    ours = one.contestant == OURS
    return (
        f"**{one.contestant}**" if ours else one.contestant,
        f"{1e3 * one.tpot:.1f}",
        "1" if ours else f"{one.ratio:.2f}",
        "" if ours else f"{one.ratio_interval}",
        f"{1e3 * one.first_token:.0f}",
        f"{one.tokens_a_step:.2f}",
        f"{one.same_text}/{one.answers}",
    )


def race_report(results: Results) -> str:
    """Markdown: what was done, the table, and where it was measured. Raises ConfigError if there is nothing to tell."""
    figures = race_figures(results.race_answers)
    if not figures:
        raise ConfigError("the rows hold no answers of a race in which our engine took part")
    told = {row.session for row in results.race_answers}
    sessions = [session for session in results.sessions if session.id in told]
    last = sessions[-1]
    race = json.loads(last.provenance["race"])
    lines = [
        f"{last.model}, one request at a time, greedy, each answer as long as the model's own and at most "
        f"{race['tokens']} tokens, all engines in turn on each prompt in random order. Ratios are medians of pairs, "
        "with bootstrap intervals; *same text*: answers with the tokens of K=0.",
        "",
        str(race_table(figures)),
        "",
        *(f"* {line}" for line in dict.fromkeys(map(_where, sessions))),
    ]
    return "\n".join(lines)


def _where(session: Session) -> str:
    facts = session.provenance
    versions = "; ".join(f"{name}: {facts[name]}" for name in json.loads(facts["race"])["environments"])
    return (
        f"{session.began[:10]}, commit {facts['commit']}, {facts['machine']}, {facts['threads']} threads; {versions}. "
        f"`{facts['command']}`"
    )


def in_readme(text: str, report: str) -> str:
    """`text`, a README, with `report` between the marks. Raises ConfigError if it has no marks."""
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ConfigError(f"the README lacks the marks {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{report}\n\n{END}{after}"


def publish(rows: Path, results: Results, readme: Path = README, published: Path = PUBLISHED) -> None:
    """Write the report of `results`, the rows of file `rows`, into the README, and keep the rows beside the docs."""
    text = in_readme(readme.read_text(encoding="utf-8"), race_report(results))
    if rows.resolve() != published.resolve():
        published.parent.mkdir(parents=True, exist_ok=True)
        published.write_bytes(rows.read_bytes())
    readme.write_text(text, encoding="utf-8")
