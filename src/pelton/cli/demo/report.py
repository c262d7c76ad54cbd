"""The verdict on a run and its figures, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pelton.cli.demo.checks import PromiseCheck, passed
from pelton.cli.demo.figures import Spreader, done_by, spread_of
from pelton.cli.demo.record import Run, WorkerRecord


def print_report(console: Console, run: Run, verdicts: Sequence[PromiseCheck], worst: Sequence[Spreader]) -> bool:
    """Print the report; return True if every promise was kept."""
    console.print()
    console.print(_headline(run))
    console.print(_workers(run))
    console.print(_spreaders(worst))
    for reason, count in reasons(run).items():
        console.print(f"Dead letters: [bold]{count:,}[/] x {reason}")
    console.print()
    console.print(_promises(verdicts))
    kept = passed(verdicts)
    console.print(
        Text("PASS: every promise kept", "bold green") if kept else Text("FAIL: a promise was broken", "bold red")
    )
    return kept


def reasons(run: Run) -> Mapping[str, int]:
    """Return how many dead letters there are for each reason, most first."""
    counts: dict[str, int] = {}
    for letter in run.dead:
        counts[letter.reason] = counts.get(letter.reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _headline(run: Run) -> Text:
    done = sum(done_by(run).values())
    return Text.assemble(
        (f"{done:,}", "bold"),
        " flights of ",
        (f"{len(run.states):,}", "bold"),
        " aircraft in ",
        (f"{run.seconds:,.1f} s", "bold"),
        ", ",
        (f"{done / run.seconds:,.0f} a second", "bold"),
        "; ",
        (f"{spread_of(run):,}", "bold"),
        " minutes of delay were handed on to later flights",
    )


def _workers(run: Run) -> Table:
    table = Table("worker", "pid", title="Workers", title_justify="left")
    for heading in ("flights", "seconds", "a second"):
        table.add_column(heading, justify="right")
    table.add_column("fate")
    done = done_by(run)
    for worker in sorted(run.workers):
        seconds = _lifetime(run, worker)
        fate = "[bold red]killed (SIGKILL)[/]" if worker.killed_ns is not None else "worked to the end"
        count = done[worker.number]
        table.add_row(
            str(worker.number),
            str(worker.pid),
            f"{count:,}",
            f"{seconds:,.1f}",
            f"{count / seconds:,.0f}",
            fate,
        )
    return table


def _lifetime(run: Run, worker: WorkerRecord) -> float:
    end = run.ended_ns if worker.killed_ns is None else worker.killed_ns
    return max(1, end - worker.started_ns) / 1e9


def _spreaders(worst: Sequence[Spreader]) -> Table:
    table = Table("aircraft", "airline", "model", title="The aircraft that spread most delay", title_justify="left")
    for heading in ("flights", "cancelled", "minutes spread", "longest ripple"):
        table.add_column(heading, justify="right")
    for tail, carrier, model, state in worst:
        table.add_row(
            tail,
            carrier,
            model,
            f"{state.flights:,}",
            f"{state.cancelled:,}",
            f"{state.spread:,}",
            f"{state.longest} flights",
        )
    return table


def _promises(verdicts: Sequence[PromiseCheck]) -> Table:
    table = Table("", "promise", "evidence", title="Promises", title_justify="left")
    for promise, kept, detail in verdicts:
        table.add_row(Text("PASS", "green") if kept else Text("FAIL", "bold red"), promise, Text(detail))
    return table
