"""Signal handlers never replace the program's own, and are restored afterwards."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pelton.runtime import StopSignals, is_interrupt


@pytest.fixture(autouse=True)
def python_handles_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_stops_and_all_handlers_are_back_at_once() -> None:
    stops = list[int]()
    signals = StopSignals(lambda: stops.append(1))
    signals.take()
    signal.raise_signal(signal.SIGTERM)
    assert (stops, signals.taken) == ([1], False)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_what_somebody_handles_is_left_alone(handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)
    signals = StopSignals(lambda: pytest.fail("not ours"))
    signals.take()
    assert signal.getsignal(signal.SIGTERM) is handler
    signal.raise_signal(signal.SIGTERM)
    signals.give_back()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_came_after_stays() -> None:
    signals = StopSignals(lambda: pytest.fail("not ours"))
    signals.take()

    def later(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, later)
    signals.give_back()
    assert signal.getsignal(signal.SIGTERM) is later


def test_a_handler_that_is_put_back_after_we_left_does_what_python_does() -> None:
    """A server keeps the handlers it found, ours among them, and restores them as it ends."""
    signals = StopSignals(lambda: pytest.fail("we had left"))
    signals.take()
    ours = signal.signal(signal.SIGINT, lambda *_: None)
    signals.give_back()
    signal.signal(signal.SIGINT, ours)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_is_put_back_while_we_wait_is_heard() -> None:
    stops = list[int]()
    signals = StopSignals(lambda: stops.append(1))
    signals.take()
    ours = signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGTERM, ours)
    signal.raise_signal(signal.SIGTERM)
    assert (stops, signal.getsignal(signal.SIGTERM)) == ([1], signal.SIG_DFL)


def test_the_handler_of_asyncio_run_is_nobodys() -> None:
    stops = list[int]()

    async def main() -> None:
        before = signal.getsignal(signal.SIGINT)
        assert before is not signal.default_int_handler
        signals = StopSignals(lambda: stops.append(1))
        signals.take()
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before

    asyncio.run(main())
    assert stops == [1]


def test_a_signal_that_does_not_interrupt_the_wait_of_the_loop_is_heard() -> None:
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()

    async def main() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = StopSignals(lambda: loop.call_soon_threadsafe(stopped.set))
        signals.take()
        # As a signal that comes just before the loop waits: the wait goes on.
        killer = threading.Timer(0.05, lambda: signal.pthread_kill(other.ident or 0, signal.SIGTERM))
        killer.start()
        await stopped.wait()
        signals.give_back()
        signals.give_back()

    try:
        asyncio.run(main())
    finally:
        over.set()
        other.join()
    assert signal.set_wakeup_fd(-1) == -1


def test_whoever_is_woken_by_signals_already_is_left_alone() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: None)
        before = _wakeup_fd()
        signals = StopSignals(lambda: None)
        signals.take()
        assert _wakeup_fd() == before != -1
        signals.give_back()
        assert _wakeup_fd() == before
        loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(main())


def _wakeup_fd() -> int:
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found)
    return found


def test_nothing_is_taken_on_another_thread() -> None:
    signals = StopSignals(lambda: None)
    asyncio.run(asyncio.to_thread(signals.take))
    assert not signals.taken
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_whoever_handles_sigterm_keeps_sigint_too_and_not_the_other_way_round() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signals = StopSignals(lambda: None)
    try:
        for handled, other in ((signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)):
            signal.signal(handled, lambda *_: None)
            signals.take()
            assert signals.taken == (handled == signal.SIGINT)
            assert (signal.getsignal(other) is before[other]) == (handled == signal.SIGTERM)
            signals.give_back()
            assert signal.getsignal(other) is before[other]
            signal.signal(handled, before[handled])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raised() -> KeyboardInterrupt:
    """Return an interrupt that the program has raised itself."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        return error


def test_an_interrupt_is_told_from_one_that_the_program_raises() -> None:
    signals, on_thread = StopSignals(lambda: None), list[bool]()
    assert is_interrupt(raised()), "it can't be told, with Python's own handler"
    assert not is_interrupt(SystemExit())
    signals.take()
    assert not is_interrupt(raised())
    signals.give_back()
    thread = threading.Thread(target=lambda: on_thread.append(is_interrupt(raised())))
    thread.start()
    thread.join()
    assert on_thread == [False]


async def test_an_interrupt_of_an_event_loop_is_told_from_one_that_the_program_raises() -> None:
    assert not is_interrupt(raised())
    task = asyncio.current_task()
    assert task is not None
    # asyncio's own handler: the first one cancels the task.
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        signal.raise_signal(signal.SIGINT)
    assert is_interrupt(interrupt.value)
    task.uncancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
