"""The display while the demo runs: one bar, one row per worker, the dead letters.

The screen reads no clock. The driver of the run passes it a `Snapshot` a few times a second; rates come from
the snapshots of the last few seconds. Without a terminal (a pipe, CI) only the last state is printed, once.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Literal, NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

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

    def __init__(self, console: Console, title: str = "pelton demo") -> None:
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


def render(now: Snapshot, earlier: Snapshot, title: str = "pelton demo") -> RenderableType:
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
