"""The blocking kit measures and waits on the thread it is called on."""

from pelton.runtime import cpu_wait, pause, stopwatch


def test_a_pause_is_seen_by_the_stopwatch() -> None:
    started = stopwatch()
    pause(0.001)
    assert stopwatch() - started >= 0.001


def test_the_wait_for_a_cpu_only_grows() -> None:
    before = cpu_wait()
    assert 0 <= before <= cpu_wait()
