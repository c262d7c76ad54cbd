"""The blocking API: it is complete, and it blocks, wakes, ends and fails as documented."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pelton
import pelton.sync
from pelton.sync.derive import FACES, Twin, derive, public_names, source_of, twin_of, wrap
from pelton.sync.portal import Portal
from tools import sync_stub

TWINS = [
    face
    for face in (getattr(pelton.sync, name) for name in pelton.sync.__all__)
    if isinstance(face, type) and issubclass(face, Twin)
]


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Any]:
    with pelton.sync.open(tmp_path / "store.pelton") as jet:
        yield jet


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal("test")
    yield portal
    portal.stop()


# --- parity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_every_public_name_and_parameter_of_an_async_class_is_in_its_twin(twin: type[Twin]) -> None:
    source = source_of(twin)
    for name in public_names(source):
        mine, theirs = inspect.getattr_static(twin, FACES.get(name, name)), inspect.getattr_static(source, name)
        if name == "__aexit__":
            continue
        if isinstance(theirs, classmethod):
            mine, theirs = mine.__func__, theirs.__func__
        assert mine.__doc__ == theirs.__doc__
        if inspect.isfunction(theirs):
            assert inspect.signature(mine) == inspect.signature(theirs)
        assert not inspect.iscoroutinefunction(mine)
        assert not inspect.isasyncgenfunction(mine)


def test_every_public_class_with_coroutine_methods_has_a_twin() -> None:
    for name in pelton.__all__:
        kind = getattr(pelton, name)
        if isinstance(kind, type) and not getattr(kind, "_is_protocol", False):
            methods = [getattr(kind, name) for name in dir(kind) if name in FACES or not name.startswith("_")]
            # It is given jobs, which have twins.
            is_async = any(map(inspect.iscoroutinefunction, methods)) or name == "FlowWithOptions"
            assert (twin_of(kind) is not None) == is_async, name
            if is_async:
                assert getattr(pelton.sync, name) is twin_of(kind)


def test_the_public_names_are_the_same() -> None:
    assert {*pelton.sync.__all__, "sync"} == set(pelton.__all__)
    different = {name for name in pelton.sync.__all__ if getattr(pelton.sync, name) is not getattr(pelton, name)}
    assert different == {twin.__name__ for twin in TWINS} | {"open", "JobContext"}


def test_open_takes_what_the_async_open_takes() -> None:
    assert inspect.signature(pelton.sync.open) == inspect.signature(pelton.open)


def test_the_stub_is_what_would_be_written_now() -> None:
    assert sync_stub.TARGET.read_text() == sync_stub.stub(), "run: python -m tools.sync_stub"


def test_type_checkers_see_blocking_signatures(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from typing import assert_type\n"
        "import pelton.sync\n"
        "with pelton.sync.open('memory:') as jet:\n"
        "    assert_type(jet, pelton.sync.Jet)\n"
        "    stream = jet.create_stream('orders')\n"
        "    assert_type(stream.create_consumer().fetch(), list[pelton.sync.Message])\n"
        "    for message in stream.create_consumer():\n"
        "        assert_type(message.data, bytes)\n"
    )
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", program], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


# --- streams --------------------------------------------------------------------------------------


def test_publish_fetch_and_ack(jet: Any) -> None:
    stream = jet.create_stream("orders", subjects=["orders.>"], retention="workqueue")
    assert jet.publish("orders.eu", b"1", headers={"Colour": "red"}) == pelton.PubAck("orders", 1)
    assert [ack.seq for ack in jet.publish_batch([("orders.eu", b"2"), ("orders.us", b"3")])] == [2, 3]
    consumer = stream.create_consumer(durable_name="worker")
    messages = consumer.fetch(10)
    assert [message.data for message in messages] == [b"1", b"2", b"3"]
    assert messages[0].headers["Colour"] == "red"
    assert messages[0].metadata.num_delivered == 1
    messages[0].ack()
    consumer.ack(message for message in messages[1:])
    assert stream.info().state.messages == 0
    assert (stream.name, stream.config.retention, consumer.name) == ("orders", "workqueue", "worker")


def test_errors_are_those_of_the_async_face(jet: Any) -> None:
    with pytest.raises(pelton.StreamNotFoundError, match="nowhere"):
        jet.stream("nowhere")
    with pytest.raises(pelton.ConfigError):
        jet.create_stream("orders", max_mgs=1)
    with pytest.raises(TypeError):
        jet.publish()


def test_an_iteration_that_is_left_gives_back_what_it_took(jet: Any) -> None:
    stream = jet.create_stream("orders")
    jet.publish_batch([("orders", b"%d" % number) for number in range(10)])
    consumer = stream.create_consumer(durable_name="worker")
    for message in consumer:
        message.ack()
        break
    again = consumer.fetch(10, no_wait=True)
    assert sorted(message.data for message in again) == [b"%d" % number for number in range(1, 10)]


def test_many_threads_share_one_jet(jet: Any) -> None:
    jet.create_stream("orders")
    with ThreadPoolExecutor(8) as threads:
        acks = list(threads.map(lambda number: jet.publish("orders", b"%d" % number), range(200)))
    assert sorted(ack.seq for ack in acks) == list(range(1, 201))


def test_memory_stores(tmp_path: Path) -> None:
    with pelton.sync.open("memory:") as jet:
        jet.create_stream("orders")
        assert jet.stream_names() == ["orders"]
    assert list(tmp_path.iterdir()) == []


# --- the queue ------------------------------------------------------------------------------------


def test_jobs_run_and_are_seen(jet: Any) -> None:
    garage = jet.queue("garage", exclusive=True)

    @garage.job
    def repair(car: str, what: str) -> str:
        return f"{car}: {what}"

    @garage.job(name="wreck", max_attempts=1)
    def other(car: str) -> None:
        raise OSError(car)

    assert repair("car1", "paint") == "car1: paint"
    handle = repair.enqueue("car1", "paint", key="car1")
    repair.enqueue_many([("car1", "wash"), ("car2", "wash")], keys=["car1", "car2"])
    garage.enqueue_many([other.bind("car3")])
    assert [info.state for info in garage.jobs()] == ["pending"] * 4
    assert garage.counts().pending == 4
    garage.work(until_empty=True)
    assert handle.outcome(timeout=60).value() == "car1: paint"
    assert handle.info().state == "completed"
    assert (garage.counts().completed, garage.counts().failed) == (3, 1)
    assert [outcome.error for outcome in garage.history("failed")] == ["OSError: car3 (attempt 1 of 1)"]
    (dead,) = garage.dead_letters()
    assert garage.redrive(dead.outcome.id).info().state == "pending"
    assert garage.jobs_by_name["repair"].queue.name == garage.name == "garage"
    assert garage.jet.stream_names() == jet.stream_names()


def test_a_queue_can_be_opened_by_its_class(jet: Any) -> None:
    queue = pelton.sync.Queue.open(jet, "garage", exclusive=None, lease=30, history_max_age=60)
    assert isinstance(queue, pelton.sync.Queue)
    assert queue.counts().unfinished == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_stops_gracefully_at_a_signal(jet: Any, number: signal.Signals) -> None:
    garage = jet.queue("garage")
    main, before = threading.main_thread().ident, signal.getsignal(number)
    assert main is not None

    @garage.job
    def told(context: pelton.JobContext) -> str:
        signal.pthread_kill(main, number)
        until(lambda: context.stopping)
        return "finished"

    handle = told.enqueue()
    garage.work()
    assert handle.info().outcome.value() == "finished"
    assert signal.getsignal(number) is before


def test_work_leaves_a_signal_alone_that_the_program_handles(jet: Any) -> None:
    garage = jet.queue("garage")
    main, told = threading.main_thread().ident, list[int]()
    assert main is not None

    @garage.job
    def tells(context: pelton.JobContext) -> bool:
        signal.pthread_kill(main, signal.SIGTERM)
        until(lambda: bool(told) or context.stopping)
        return context.stopping

    handle = tells.enqueue()
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        garage.work(until_empty=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (told, handle.info().outcome.value()) == ([signal.SIGTERM], False)


def test_an_interrupted_work_without_signal_handlers_hands_back(jet: Any) -> None:
    garage = jet.queue("garage")
    main = threading.main_thread().ident
    assert main is not None

    @garage.job
    async def interrupted() -> None:
        if await asyncio.to_thread(garage.counts) and not seen:
            seen.append(True)
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.get_running_loop().create_future()

    seen: list[bool] = []
    handle = interrupted.enqueue()
    with pytest.raises(KeyboardInterrupt):
        garage.work(handle_signals=False, grace=0)
    assert handle.info().state == "pending"
    garage.work(until_empty=True)
    assert handle.info().outcome.attempt == 1


# --- the end --------------------------------------------------------------------------------------


def test_closing_is_idempotent_and_final(jet: Any) -> None:
    jet.create_stream("orders")
    with ThreadPoolExecutor(4) as threads:
        for closing in [threads.submit(jet.close) for _ in range(4)]:
            closing.result()
    jet.close()
    with pytest.raises(pelton.StoreClosedError):
        jet.publish("orders")


def test_closing_ends_calls_of_other_threads(jet: Any) -> None:
    consumer = jet.create_stream("orders").create_consumer(durable_name="worker")
    with ThreadPoolExecutor(1) as threads:
        fetching = threads.submit(consumer.fetch, timeout=None)
        until(lambda: consumer.info().num_waiting == 1)
        jet.close()
        with pytest.raises(pelton.StoreClosedError):
            fetching.result()


def test_an_open_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    (tmp_path / "text").write_text("not a store, though as long as a header of SQLite would have to be" * 20)
    with pytest.raises(pelton.NotAStoreError):
        pelton.sync.open(tmp_path / "text")
    assert threading.active_count() == before


def test_an_interrupt_cancels_the_operation(jet: Any) -> None:
    consumer = jet.create_stream("orders").create_consumer(durable_name="worker")
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(lambda: consumer.info().num_waiting == 1)
        signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor(1) as threads:
        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            consumer.fetch(timeout=None)
        interrupting.result()
    assert consumer.info().num_waiting == 0
    jet.publish("orders", b"later")
    assert [message.data for message in consumer.fetch(no_wait=True)] == [b"later"]


def test_the_loop_does_not_wait_for_itself(jet: Any) -> None:
    with pytest.raises(RuntimeError, match="own event loop"):
        jet._portal.run(jet.stream_names)


FORKED = """
import os, sys
import pelton, pelton.sync
jet = pelton.sync.open(sys.argv[1])
jet.create_stream("orders")
child = os.fork()
if child == 0:
    try:
        jet.publish("orders", b"from the child")
    except pelton.StoreForkedError as error:
        jet.close()
        with pelton.sync.open(sys.argv[1]) as mine:
            mine.publish("orders", b"from the child")
        os._exit(42)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
assert jet.stream("orders").info().state.messages == 1
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_and_can_open_its_own_and_a_forgotten_close_lets_the_program_end(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, str(tmp_path / "store.pelton")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# --- derivation -----------------------------------------------------------------------------------


class Part:
    def __init__(self, name: str) -> None:
        self.name = name

    async def called(self) -> str:
        return self.name


class Whole:
    """A class with everything that a twin has to convert."""

    def __init__(self) -> None:
        self.main = Part("main")
        self.given: list[object] = []
        self.closed = 0

    @property
    def first(self) -> Part:
        """A handle behind a property."""
        return self.main

    async def parts(self, count: int) -> list[Part]:
        return [Part(str(number)) for number in range(count)]

    async def give(self, *parts: object, more: object = None) -> None:
        self.given = [*parts, more]

    async def stream(self) -> AsyncIterator[Part]:
        try:
            for number in range(3):
                yield Part(str(number))
        finally:
            self.closed += 1

    def thread(self) -> str:
        return threading.current_thread().name

    def decorator(self, **options: str) -> Callable[[Callable[[], str]], Part]:
        return lambda function: Part(function() + "".join(options))

    def __call__(self, value: int) -> tuple[int, str]:
        return value, threading.current_thread().name

    def __aiter__(self) -> "Whole":
        return self

    async def __anext__(self) -> Part:
        self.closed += 1
        if self.closed > 2:
            raise StopAsyncIteration
        return Part("next")

    async def __aenter__(self) -> "Whole":
        return self

    async def __aexit__(self, *error: object) -> None:
        self.closed = 100


BlockingPart, BlockingWhole = derive(Part), derive(Whole)


def test_handles_are_wrapped_and_unwrapped(portal: Portal) -> None:
    inner = Whole()
    whole: Any = wrap(inner, portal)
    assert isinstance(whole, BlockingWhole)
    assert [part.called() for part in whole.parts(2)] == ["0", "1"]
    assert whole.main.called() == whole.first.called() == "main"
    part, *_ = parts = whole.parts(3)
    whole.give(part, parts, (item for item in parts), more=part)
    assert all(isinstance(given, Part) for given in [inner.given[0], inner.given[3], *inner.given[1], *inner.given[2]])  # type: ignore[misc]
    assert whole.decorator(x="1")(lambda: "made").called() == "madex"


def test_where_things_run(portal: Portal) -> None:
    whole: Any = wrap(Whole(), portal)
    assert whole.thread() == "pelton-sync test"
    assert whole(1) == (1, threading.current_thread().name)


def test_iterations_end_when_they_are_left(portal: Portal) -> None:
    inner = Whole()
    whole: Any = wrap(inner, portal)
    assert [part.name for part in whole.stream()] == ["0", "1", "2"]
    assert inner.closed == 1
    for _ in whole.stream():
        break
    assert inner.closed == 2
    left = whole.stream()
    next(left)
    portal.run(left.close)  # as the garbage collector may do on the loop's own thread
    until(lambda: inner.closed == 3)
    inner.closed = 0
    assert [part.name for part in whole] == ["next", "next"]


def test_with_ends_what_it_began(portal: Portal) -> None:
    inner = Whole()
    whole: Any = wrap(inner, portal)
    with whole as entered:
        assert entered is whole
    assert inner.closed == 100


def test_private_names_stay_private(portal: Portal) -> None:
    whole: Any = wrap(Whole(), portal)
    with pytest.raises(AttributeError):
        _ = whole._hidden
    with pytest.raises(AttributeError):
        whole.anything = 1
    assert repr(whole).startswith("<blocking <")


def test_a_portal_that_stops_answers_what_is_under_way(portal: Portal) -> None:
    begun = threading.Event()

    async def never() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(portal.run, never)
        begun.wait()
        portal.stop()
        with pytest.raises(pelton.StoreClosedError, match="during this call"):
            waiting.result()
    portal.stop()


def until(condition: Callable[[], bool]) -> None:
    """Check repeatedly; every check goes through the loop that is waited for, so it makes progress."""
    while not condition():
        pass


# --- transactions ---------------------------------------------------------------------------------


def test_a_transaction_goes_from_call_to_call_with_its_thread(jet: Any) -> None:
    stream = jet.create_stream("s", subjects=["s.>"])
    consumer = stream.create_consumer(durable_name="c")
    jet.publish("s.in", b"0")
    queue = jet.queue("garage")
    wash = queue.job(washed)
    [message] = consumer.fetch(1)
    with jet.transaction(timeout=20) as tx:
        tx.sql("CREATE TABLE orders(what)")
        tx.ack(message)
        with pytest.raises(ZeroDivisionError), tx.savepoint():  # noqa: PT012  # the whole block raises
            tx.publish("s.no")
            1 / 0  # noqa: B018  # it raises
        with jet.transaction() as inner:
            inner.sql("INSERT INTO orders VALUES('a')")
        assert tx.publish("s.out", b"1").seq == 2
        assert stream.info().state.messages == 2
        with pytest.raises(pelton.TransactionError, match="inside its block only"):
            jet.publish("s.x")
        tx.enqueue(wash, "car")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: stream.info().state.messages).result(20) == 1
            with pytest.raises(pelton.TransactionError, match="belongs to the task"):
                pool.submit(tx.publish, "s.x").result(20)
    assert stream.info().state.messages == 2
    with pytest.raises(ZeroDivisionError), jet.transaction() as tx:  # noqa: PT012  # the whole block raises
        tx.publish("s.no")
        1 / 0  # noqa: B018  # it raises
    assert (stream.info().state.messages, queue.counts().pending) == (2, 1)


def washed(car: str) -> None:
    """A job."""
