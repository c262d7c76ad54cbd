"""The display while the demo runs: one bar, one row per worker, the dead letters.

The screen reads no clock. The driver of the run passes it a `Snapshot` a few times a second; rates come from
the snapshots of the last few seconds. Without a terminal (a pipe, CI) only the last state is printed, once.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.flights.checks import PromiseCheck, passed
from examples.flights.picture import Spreader, done_by, spread_of
from examples.flights.record import Run, WorkerRecord

WINDOW_S = 3.0

State = Literal["starting", "running", "killed", "replacing", "finished"]

_STATES: dict[State, tuple[str, str]] = {
    "starting": ("starting", "dim"),
    "running": ("running", "green"),
    "killed": ("KILLED (SIGKILL)", "bold red"),
    "replacing": ("running, replaces a killed one", "cyan"),
    "finished": ("finished", "blue"),
}


class WorkerView(NamedTuple):
    """The state of one worker: its number, process id, flights done so far, and state."""

    number: int
    pid: int
    done: int
    state: State


class Snapshot(NamedTuple):
    """The run at one moment, `at_s` seconds after its start."""

    at_s: float
    done: int
    total: int
    dead: int
    workers: tuple[WorkerView, ...]
    note: str = ""


class Screen:
    """The live display, a context manager; `show` draws a snapshot at once."""

    def __init__(self, console: Console, title: str = "a year of flights") -> None:
        self._title = title
        self._recent: deque[Snapshot] = deque()
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Draw `snapshot`."""
        self._recent.append(snapshot)
        while len(self._recent) > 2 and snapshot.at_s - self._recent[1].at_s >= WINDOW_S:
            self._recent.popleft()
        self._live.update(render(snapshot, self._recent[0], self._title), refresh=True)


def render(now: Snapshot, earlier: Snapshot, title: str = "a year of flights") -> RenderableType:
    """Return the whole display; rates are computed since `earlier`."""
    note = [Text(now.note, "yellow")] if now.note else []
    return Panel(Group(_progress(now, earlier), _workers(now, earlier), *note), title=title, title_align="left")


def _progress(now: Snapshot, earlier: Snapshot) -> Table:
    settled = now.done + now.dead
    rate = _rate(settled, earlier.done + earlier.dead, now, earlier)
    left = f"{(now.total - settled) / rate:,.0f} s to go" if rate and settled < now.total else ""
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        ProgressBar(total=max(1, now.total), completed=settled, width=40),
        Text(f"{settled / max(1, now.total):.0%}", "bold"),
        f"{now.done:,} of {now.total:,} flights",
        f"{rate:,.0f}/s",
        Text(f"{now.dead:,} dead letters", "magenta" if now.dead else "dim"),
        left,
    )
    return grid


def _workers(now: Snapshot, earlier: Snapshot) -> Table:
    before = {worker.number: worker.done for worker in earlier.workers}
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in ("worker", "pid", "flights", "rate"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    for number, pid, done, state in now.workers:
        label, style = _STATES[state]
        rate = _rate(done, before.get(number, 0), now, earlier)
        table.add_row(
            str(number),
            str(pid),
            f"{done:,}",
            f"{rate:,.0f}/s",
            Text(label, style),
            style="dim" if state == "killed" else "",
        )
    return table


def _rate(done: int, before: int, now: Snapshot, earlier: Snapshot) -> float:
    elapsed = now.at_s - earlier.at_s
    return (done - before) / elapsed if elapsed > 0 else 0.0


# --- the verdict on a run and its figures, for a terminal


def print_report(console: Console, run: Run, verdicts: Sequence[PromiseCheck], worst: Sequence[Spreader]) -> bool:
    """Print the report; return True if every promise was kept."""
    console.print()
    console.print(_headline(run))
    console.print(_worker_table(run))
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


def _worker_table(run: Run) -> Table:
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


# --- the dashboard beside the demo, in a process of its own, if its extra is installed

_NEEDS: Final = ("starlette", "uvicorn", "jinja2", "prometheus_client")
_STOP_S: Final = 5.0


@contextmanager
def live_page(store: Path) -> Iterator[str]:
    """Serve the dashboard of a store file, and yield its address; empty if it can't be served."""
    if not all(map(find_spec, _NEEDS)):
        yield ""
        return
    # The interactive interrupt is the demo's, which ends the page as well.
    command = [sys.executable, "-m", "pelton", "dashboard", str(store), "--port", "0"]
    page = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        assert page.stdout is not None
        yield page.stdout.readline().rpartition(" ")[2].strip()
    finally:
        page.terminate()
        try:
            page.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            page.kill()
            page.wait()
        if page.stdout is not None:
            page.stdout.close()
