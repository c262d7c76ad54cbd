"""The live display, from snapshots alone."""

from __future__ import annotations

import io

from rich.console import Console

from examples.flights.screen import Screen, Snapshot, State, WorkerView, render


def snapshot(at_s: float, done: int, state: State = "running", note: str = "") -> Snapshot:
    workers = (WorkerView(1, 4101, done // 2, "running"), WorkerView(2, 4102, done // 2, state))
    return Snapshot(at_s, done, 1_000, 8, workers, note)


def shown(now: Snapshot, earlier: Snapshot) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(render(now, earlier))
    return out.getvalue()


def test_rates_come_from_the_snapshots() -> None:
    text = shown(snapshot(4, 600), snapshot(2, 200))
    assert "200/s" in text
    assert "100/s" in text
    assert "600 of 1,000 flights" in text
    assert "2 s to go" in text
    assert "8 dead letters" in text


def test_a_first_snapshot_has_no_rate() -> None:
    assert "0/s" in shown(snapshot(0, 0), snapshot(0, 0))
    assert "to go" not in shown(snapshot(0, 0), snapshot(0, 0))


def test_a_killed_worker_and_a_note_are_shown() -> None:
    text = shown(snapshot(4, 600, "killed", "worker 2 was killed"), snapshot(2, 600))
    assert "KILLED (SIGKILL)" in text
    assert "worker 2 was killed" in text


def test_an_empty_job_is_no_division_by_zero() -> None:
    assert "0 of 0" in shown(Snapshot(0, 0, 0, 0, ()), Snapshot(0, 0, 0, 0, ()))


def test_without_a_terminal_only_the_end_is_printed() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=120)) as screen:
        for at in range(10):
            screen.show(snapshot(at, at * 100))
        assert out.getvalue() == ""
    assert out.getvalue().count("a year of flights") == 1
    assert "900 of 1,000" in out.getvalue()


def test_rates_forget_what_is_older_than_the_window() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=120)) as screen:
        for at, done in ((0, 0), (10, 100), (12, 300), (14, 500)):
            screen.show(snapshot(at, done))
    assert "100/s" in out.getvalue()
