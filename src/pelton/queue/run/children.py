"""The child processes of a worker, in each of which one job at a time may block, crash or be killed.

A child runs one job after another. One that dies costs the attempt of its own job, and no other; the worker waits for
it on a thread. Calls and answers travel through a pipe: arguments and results as JSON, errors pickled, each beside its
traceback. The worker decides when a job ends, so the child is deaf to the signals that stop workers; it ends with its
pipe, and at once if its worker dies, because another worker will run the job again.

A job may start processes, which are in the child's group, and end with it. One that it forks has everything of the
child, the pipe too: a copy of the child answers nothing, takes no call, and ends where it would come back.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

import msgspec

from pelton.api import JobCrashedError, JobError, Outgoing
from pelton.api.tracing import Tracing
from pelton.queue.job import JobDefinition
from pelton.queue.job_message import JobArguments
from pelton.queue.model.options import JobRules
from pelton.queue.model.states import NOTHING, FlowPlace, JobProgress
from pelton.queue.run.blocking import (
    AGAIN,
    RAISED,
    RETURNED,
    BlockingContext,
    CallBack,
    ask_worker,
    error_of,
    pickle_error,
)
from pelton.queue.run.calls import CalledJob
from pelton.queue.run.slots import Copies, flush
from pelton.runtime import SystemClock, until_ended

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from pelton.queue.model.records import AttemptRecords

CALLED: Final = b"C"
READY: Final = b"B"
TOLD: Final = b"P"
ASKED: Final = b"A"
_encode: Final = msgspec.json.Encoder().encode
# What a message is, the number of its call, and the process of the child.
HEAD: Final = struct.Struct("!cQQ")
# Until when a job may begin, in seconds since boot.
UNTIL: Final = struct.Struct("!d")
_STOPS: Final[dict[signal.Signals, Any]] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class ChildCall(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt for a child: which function, with which arguments, and what its context shows."""

    module: str
    function: str
    job: str
    args: msgspec.Raw
    queue: str
    worker: str
    id: str
    key: str
    attempt: int
    last_error: str
    enqueued_at: int
    token: int
    meta: dict[str, str]
    # What undoes a step, with its arguments, pickled: only that is called.
    undo: bytes = b""


class ChildReply(msgspec.Struct, frozen=True):
    """What a function has returned, and what it emitted."""

    result: msgspec.Raw
    emitted: list[Outgoing]


_decode: Final = msgspec.json.Decoder(ChildCall).decode


class ChildLine:
    """The pipe to the worker. What a copy of the child says is dropped."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Nor is it of programs that a job starts.
        os.set_inheritable(connection.fileno(), False)
        self._pid = os.getpid()
        self.copies: Copies = Copies()
        self._place = self._looked_up()
        # A job may tell its progress on several threads.
        self._lock = threading.Lock()
        # One question at a time, which may be asked by what another one calls.
        self._asking = threading.RLock()
        self._answers = 0

    def ask(self, number: int, question: bytes, call: Callable[[], bytes] | None) -> tuple[bytes, bytes]:
        """Ask the worker, and return the kind of its answer, and the answer; ``call`` is called whenever it says so.

        Raises CancelledError once the call with this number has ended.
        """
        if self.copies.is_one:
            raise JobError("a process that a job has forked is none of its worker's: it can't use the job's context")
        with self._asking:
            if number != self._answers:
                raise asyncio.CancelledError
            self.send(ASKED, number, question)
            failed: BaseException | None = None
            while True:
                data = self._connection.recv_bytes()
                kind, answer = data[:1], data[HEAD.size :]
                if kind != CALLED or call is None:
                    break
                try:
                    self.send(RETURNED, number, call())
                except BaseException as error:  # whoever asks gets it
                    failed = error
                    self.send(RAISED, number, pickle_error(error))
            if kind == AGAIN and failed is not None:
                raise failed
            return kind, answer

    def answering(self, number: int) -> None:
        """Let the call with this number ask; 0: none."""
        with self._asking:
            self._answers = number

    def receive(self) -> tuple[int, bytes]:
        """Return the number of the next call, and the call. Raises EOFError and OSError at the end."""
        data = self._connection.recv_bytes()
        return HEAD.unpack_from(data)[1], data[HEAD.size :]

    def send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        """Send a part of the answer to a call. Raises JobError if a job has closed the pipe."""
        if self.copies.is_one:
            return
        with self._lock:
            if self._looked_up() != self._place:
                # What has its place now is of the job.
                raise JobError("the job has closed the pipe between its child process and the worker")
            self._connection.send_bytes(HEAD.pack(kind, number, self._pid) + data)

    def _looked_up(self) -> tuple[int, int] | None:
        try:
            found = os.fstat(self._connection.fileno())
        except OSError:
            return None
        return found.st_dev, found.st_ino


class ChildNotes:
    """Passes the progress of one call on to the worker."""

    is_used = False

    def __init__(self, line: ChildLine, number: int) -> None:
        self._line = line
        self._number = number

    def tell(self, fraction: float, note: str) -> None:
        self._line.send(TOLD, self._number, _encode(JobProgress(fraction, note)))

    def close(self) -> None:
        """Do nothing: the worker stores it."""


class ChildContext(BlockingContext):
    """The context of a job in a child process: without transactions, and word from the worker."""

    __slots__ = ("_ask_worker",)

    def __init__(self, call: ChildCall, notes: ChildNotes, ask: Callable[..., tuple[bytes, bytes]]) -> None:
        self._ask_worker = ask
        for name in ("queue", "worker", "id", "job", "key", "attempt", "last_error", "enqueued_at", "token", "meta"):
            setattr(self, name, getattr(call, name))
        self._emitted = []
        self.tracing: Tracing | None = None
        self.flow: FlowPlace | None = None
        self._lost = ""
        self._stopping = False
        self._cancelled = None
        self._open_transaction = self._state = self._jet = None
        self._steps = self._make_notes = None
        self._notes = notes

    def _ask(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return ask_worker(self._ask_worker, name, args, kwargs)

    def call(self, job: Any, /, *args: Any, **kwargs: Any) -> CalledJob[Any]:
        call = job.bind(*args, **kwargs)
        number = self._ask("call", (call.job, call.args, call.options, call.meta), {})
        called: CalledJob[Any] = CalledJob(None, call, number)
        called.blocks(self.gather)
        return called


def child_main(connection: Connection) -> None:
    """Answer calls until the pipe is closed."""
    from multiprocessing import current_process

    os.setsid()
    # It may have children: multiprocessing refuses them to daemons.
    current_process().daemon = False
    os.register_at_fork(after_in_child=_hear_again)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    line = ChildLine(connection)
    _be_deaf()
    while True:
        try:
            number, data = line.receive()
        except (EOFError, OSError):
            return
        kind, answer = _answer(_decode(data), number, line)
        flush()
        _be_deaf()
        line.send(kind, number, answer)


def _end_with_parent() -> None:
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    if parent is not None:
        watched: list[Any] = [parent.sentinel]
        if sys.platform == "linux":
            # The other is a pipe, which a process that was forked from the worker has as well.
            with suppress(OSError):
                watched.append(os.pidfd_open(parent.pid or 0))
        wait(watched)
        os.killpg(0, signal.SIGKILL)


def _answer(call: ChildCall, number: int, line: ChildLine) -> tuple[bytes, bytes]:
    try:
        job = function_of(call.module, call.function, call.job)
        if call.undo:
            function, args, kwargs = pickle.loads(call.undo)
            _await_begin(line, number)
            function(*args, **kwargs)
            return RETURNED, _encode(ChildReply(NOTHING, []))
        context = ChildContext(call, ChildNotes(line, number), partial(line.ask, number))
        arguments = job.arguments.decode(call.args)
        if job.context_parameter:
            arguments[job.context_parameter] = context
        # What a new child imports first does not count.
        _await_begin(line, number)
        line.answering(number)
        result = job.function(**arguments)
        line.copies.end(None)
        return RETURNED, _encode(ChildReply(job.results.encode(result), context.emitted_messages()))
    except BaseException as error:  # whatever a job raises is its outcome
        line.copies.end(error)
        return RAISED, pickle_error(error)
    finally:
        line.answering(0)


def _await_begin(line: ChildLine, number: int) -> None:
    """Return when the worker has noted that the function is called now: while it holds the job, by the time it says."""
    clock, until = SystemClock(), 0.0
    while clock.boottime() >= until:
        line.send(READY, number)
        [until] = UNTIL.unpack(line.receive()[1])


def _be_deaf() -> None:
    """Let no signal that stops workers end the child, nor a timer that an earlier job has set.

    Not by ignoring them: so would every program that a job starts.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in _STOPS:
        signal.signal(number, _deaf)


def _deaf(number: int, frame: FrameType | None) -> None: ...


def _hear_again() -> None:
    """Let a process that a job has forked be stopped."""
    for number, usual in _STOPS.items():
        if signal.getsignal(number) is _deaf:
            signal.signal(number, usual)


def function_of(module: str, path: str, name: str) -> JobDefinition[Any, Any]:
    """Return a job by the place of its function. Raises ImportError, AttributeError."""
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if isinstance(found, JobDefinition):
        return found
    return JobDefinition(None, found, name, JobRules(), JobArguments(name, found))


T = TypeVar("T")

_reply: Final = msgspec.json.Decoder(ChildReply).decode
_told: Final = msgspec.json.Decoder(JobProgress).decode
_PATIENCE_S: Final = 2.0
_START_S: Final = 60.0

_clock: Final = SystemClock()

Told = Callable[[JobProgress], None]
Begin = Callable[[], float]
"""Called on a thread as the last thing before a job begins; returns for how many seconds it may."""
Asked = Callable[[bytes, CallBack], tuple[bytes, bytes]]
"""Answers what a child asks, on a thread: returns the kind of the answer, and that."""


class ChildTimeout(Exception):  # noqa: N818 - its caller says what has taken too long
    """A job has taken too long, and its child was killed."""


class JobChild:
    """One child process, in a group with all that its jobs start. All methods but :meth:`kill` block.

    Its end is that of its process, not of its pipe, which processes that a job has forked hold as well: a thread waits
    for it, ends the rest of the group, and then the pipe.
    """

    def __init__(self) -> None:
        from multiprocessing import get_context
        from multiprocessing.util import Finalize

        spawning = get_context("spawn")
        self._here, there = spawning.Pipe()
        self._process = spawning.Process(target=child_main, args=(there,), name="pelton-job", daemon=True)
        try:
            self._process.start()
        finally:
            there.close()
        self._gone = threading.Event()
        self._calls = 0
        ending = self._process, self._gone
        # Also when it is collected, and before multiprocessing would wait for it as the program ends.
        Finalize(self, _end_group, ending, exitpriority=0)
        threading.Thread(target=_watch, args=(*ending, ref(self)), name="pelton-child", daemon=True).start()

    @property
    def was_idle(self) -> bool:
        """Whether it has had another call before this one."""
        return self._calls > 1

    @property
    def is_gone(self) -> bool:
        return self._gone.is_set()

    def reap(self) -> int | None:
        """Wait for the end of a child that dies, and return its exit code: negative for a signal; None: it lives."""
        return self._process.exitcode if self._gone.wait(_PATIENCE_S) else None

    def call(self, data: bytes, told: Told, begin: Begin, asked: Asked | None = None) -> tuple[bytes, bytes]:
        """Run a job, and return the kind of its answer, and the answer; ``begin`` is called before its function is.

        Raises what that raises, EOFError or OSError if the child dies.
        """
        self._calls += 1
        self._say(CALLED, data)
        return self._hear(told, begin, asked)

    def _hear(self, told: Told, begin: Begin, asked: Asked | None) -> tuple[bytes, bytes]:
        def call_back() -> tuple[bytes, bytes]:
            self._say(CALLED)
            return self._hear(told, begin, asked)

        while True:
            kind, answer = self._next_of(self._calls)
            if kind == TOLD:
                told(_told(answer))
            elif kind == READY:
                until = _clock.boottime() + begin()
                self._say(CALLED, UNTIL.pack(until))
            elif kind == ASKED and asked is not None:
                self._say(*asked(answer, call_back))
            else:
                return kind, answer

    def _say(self, kind: bytes, data: bytes = b"") -> None:
        self._here.send_bytes(HEAD.pack(kind, self._calls, self._process.pid) + data)

    def _next_of(self, number: int) -> tuple[bytes, bytes]:
        """Return what comes next of the answer to a call; what anything but this child says, or to others, is not."""
        while True:
            data = self._here.recv_bytes()
            if len(data) >= HEAD.size and HEAD.unpack_from(data)[1:] == (number, self._process.pid):
                return data[:1], data[HEAD.size :]

    def kill(self) -> None:
        """End the child, and with it the job that it runs, and what that has started. From any thread."""
        _end_group(self._process, self._gone)

    def hang_up(self) -> None:
        """End the pipe, whoever has it."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._here.fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self.hang_up()
        if self.reap() is None:
            self.kill()
            self.reap()


def _watch(process: BaseProcess, gone: threading.Event, child: ref[JobChild]) -> None:
    process.join()
    _end_group(process, gone)
    gone.set()
    if (left := child()) is not None:
        left.hang_up()


def _end_group(process: BaseProcess, gone: threading.Event) -> None:
    if not gone.is_set():
        # There is none while it starts.
        with suppress(OSError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()


class _CallClock:
    """The time that a call may take: ``within`` seconds from when its function was begun."""

    def __init__(self, within: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._within = within
        self._timer: asyncio.Timeout | None = None

    @asynccontextmanager
    async def limit(self) -> AsyncGenerator[None]:
        """Raise TimeoutError when the time is over."""
        async with asyncio.timeout(None if self._within is None else self._within + _START_S) as self._timer:
            try:
                yield
            finally:
                self._timer = None

    def on_begin(self) -> None:
        """Note, on any thread, that the function was begun."""
        with suppress(RuntimeError):
            # The loop may be closed by now.
            self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._timer is not None and self._within is not None and not self._timer.expired():
            self._timer.reschedule(self._loop.time() + self._within)


class JobChildren:
    """Up to ``limit`` children, made when they are needed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: list[JobChild] = []
        self._executor: ThreadPoolExecutor | None = None

    async def run(
        self, call: ChildCall, told: Told, begin: Begin, within: float | None, asked: Asked | None = None
    ) -> ChildReply:
        """Run a job in a child for ``within`` seconds at most; if that is cancelled or too slow, the child is killed.

        Its time begins with the function: before, a new child starts, and imports it, which may take a minute more.
        Then ``begin`` is called. Raises what that and the job raise, JobCrashedError if the child dies, ChildTimeout.
        """
        child = await self._take()
        clock = _CallClock(within)

        has_begun = False

        def on_begin() -> float:
            nonlocal has_begun
            left = begin()
            has_begun = True
            clock.on_begin()
            return left

        answering = self._on_thread(child.call, _encode(call), told, on_begin, asked)
        try:
            async with clock.limit():
                kind, answer = await asyncio.shield(answering)
        except TimeoutError:
            await self._discard(child, answering)
            raise ChildTimeout from None
        except (EOFError, OSError):
            code = await self._on_thread(child.reap)
            if not child.is_gone:
                await self._discard(child, answering)
                raise JobError(
                    f"job {call.id!r} ({call.job!r}) has closed the pipe between its child process and its worker: it "
                    "must not close what it has not opened"
                ) from None
            if not has_begun and child.was_idle:
                # It was dead before it was called.
                return await self.run(call, told, begin, within, asked)
            raise JobCrashedError(call.id, call.job, code) from None
        except BaseException:
            if not answering.done():
                await self._discard(child, answering)
            if answering.cancelled() or answering.exception() is not None:
                raise
            # Its function had ended by itself: that counts, and it is not run again.
            kind, answer = answering.result()
        self._idle.append(child)
        if kind == RETURNED:
            return _reply(answer)
        raise error_of(answer)

    async def _take(self) -> JobChild:
        while self._idle:
            child = self._idle.pop()
            if not child.is_gone:
                return child
        starting = self._on_thread(JobChild)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The next job can use it.
            starting.add_done_callback(self._keep)
            raise

    def _keep(self, started: asyncio.Future[JobChild]) -> None:
        if not started.cancelled() and started.exception() is None:
            self._idle.append(started.result())

    async def _discard(self, child: JobChild, answering: asyncio.Future[Any]) -> None:
        """Kill a child; its job has ended when its process has."""
        child.kill()
        await until_ended(self._on_thread(child.reap))
        await until_ended(answering)

    def _on_thread(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._limit + 1, thread_name_prefix="pelton-child")
        return asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        await asyncio.gather(*(self._on_thread(child.end) for child in idle))
        if self._executor is not None:
            self._executor.shutdown(wait=False)


def child_call(job: JobDefinition[Any, Any], records: AttemptRecords) -> ChildCall:
    """Return the call of an attempt."""
    envelope = records.envelope
    return ChildCall(
        module=job.function.__module__,
        function=job.function.__qualname__,
        job=job.name,
        args=envelope.args,
        queue=records.queue,
        worker=records.worker,
        id=records.id,
        key=envelope.key,
        attempt=records.attempt,
        last_error=records.last_error,
        enqueued_at=records.delivered.time_ns,
        token=records.delivered.token,
        meta=envelope.meta,
    )
