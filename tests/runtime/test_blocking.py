"""The blocking kit measures and waits on the thread it is called on."""

from pelton.runtime import pause, stopwatch


def test_a_pause_is_seen_by_the_stopwatch() -> None:
    started = stopwatch()
    pause(0.001)
    assert stopwatch() - started >= 0.001
