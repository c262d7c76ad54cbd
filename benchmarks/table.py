"""The Markdown of a report: targets first, then every figure with its contender's guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks import references
from benchmarks.asks import figures
from benchmarks.case import Case, Contender, Metric
from benchmarks.facts import Facts
from benchmarks.runner import Outcome
from benchmarks.stats import middle, spread


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a bar inside a cell is escaped."""
    lines = [_row(head), _row(["---"] * len(head))]
    lines += [_row([cell.replace("|", "\\|") for cell in row]) for row in rows]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float | None, digits: int = 0) -> str:
    """Return a figure with thousands separators, a dash if it was not measured."""
    return "-" if value is None else f"{value:,.{digits}f}"


def mark(met: bool | None) -> str:
    """Return how the table shows a verdict."""
    return {True: "yes", False: "**no**", None: "-"}[met]


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return all targets, beside what was measured."""
    rows = []
    for outcome in outcomes:
        for ask in outcome.case.asks:
            verdict = ask.judge(outcome.rounds)
            met = mark(verdict.met)
            if verdict.rounds is not None and verdict.rounds[0] not in (0, verdict.rounds[1]):
                met += f", in {verdict.rounds[0]} of {verdict.rounds[1]} rounds"
            rows.append((outcome.case.title, verdict.what, verdict.asked, verdict.measured, met))
    return table(("case", "what", "asked", "measured", "met"), rows)


def case_section(outcome: Outcome) -> str:
    """Return a case's figures: medians, the range over the rounds, and each contender's guarantee."""
    case = outcome.case
    head = ["contender", *(f"{metric.key} ({metric.unit})" for metric in case.metrics)]
    rows = [_contender_row(outcome, contender) for contender in case.contenders]
    parts = [f"### {case.title}", case.how, table([*head, "guarantee"], rows)]
    if outcome.loads:
        parts.append(f"Load average before the rounds: {min(outcome.loads):.1f} to {max(outcome.loads):.1f}.")
    parts += [f"Not measured: {who}: {why}" for who, why in sorted(outcome.failures.items())]
    return "\n\n".join(parts)


def _contender_row(outcome: Outcome, contender: Contender) -> list[str]:
    cells = [_cell(outcome, contender.name, metric) for metric in outcome.case.metrics]
    return [contender.name, *cells, contender.guarantee]


def _cell(outcome: Outcome, name: str, metric: Metric) -> str:
    own = figures(outcome.rounds, name, metric.key)
    bounds = spread(own)
    told = number(middle(own), metric.digits)
    if bounds is None or bounds[0] == bounds[1]:
        return told
    return f"{told} ({number(bounds[0], metric.digits)} to {number(bounds[1], metric.digits)})"


def facts_section(facts: Facts) -> str:
    """Return the machine and the versions."""
    return table(("fact", "value"), [(name.replace("_", " "), str(value)) for name, value in facts.items()])


def references_section() -> str:
    """Return the figures measured elsewhere, apart so that they are not mistaken for ours."""
    rows = [(ref.name, number(ref.figure), ref.unit, ref.setting) for ref in references.ALL]
    return table(("fixed figure", "value", "unit", "setting"), rows)


_HOW_TO_READ = (
    "A ratio is the median, over the rounds, of Pelton's figure to the peer's figure of the same round; in brackets "
    "the lowest and the highest. The last column counts the rounds where they disagree: the answer is in doubt. "
    "Times wander with the machine; instructions and pages, which do not, are in [writes.md](writes.md)."
)


def report(outcomes: Sequence[Outcome], facts: Facts, setting: str) -> str:
    """Return the whole report in Markdown."""
    sections = [
        "# Pelton beside its peers",
        setting,
        "## Asked and measured",
        _HOW_TO_READ,
        summary(outcomes),
        "## Figures",
        "Median over the rounds (lowest to highest).",
        *(case_section(outcome) for outcome in outcomes),
        "## Fixed figures, not measured here",
        references_section(),
        "## Machine",
        facts_section(facts),
    ]
    return "\n\n".join(sections) + "\n"


def titles(cases: Sequence[Case]) -> str:
    """Return one line per case, for `--list`."""
    return "\n".join(f"{case.name:<18} {case.title}" for case in cases)
