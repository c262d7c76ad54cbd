"""A child process of a worker: runs one job after another, which may block, crash or be killed.

Calls and answers travel through a pipe: arguments and results as JSON, errors pickled, each beside its traceback. The
worker decides when a job ends, so the child is deaf to the signals that stop workers; it ends with its pipe, and at
once if its worker dies, because another worker will run the job again.

A job may start processes, which are in the child's group, and end with it. One that it forks has everything of the
child, the pipe too: a copy of the child answers nothing, takes no call, and ends where it would come back.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import threading
from contextlib import suppress
from importlib import import_module
from multiprocessing import current_process, parent_process
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Final

import msgspec

from pelton.api import JobError, Outgoing
from pelton.api.tracing import Tracing
from pelton.queue.define.arguments import JobArguments
from pelton.queue.define.job import JobDefinition
from pelton.queue.model.options import JobRules
from pelton.queue.model.records import describe, trace
from pelton.queue.model.states import FlowPlace, JobProgress
from pelton.queue.run.context import JobContext
from pelton.queue.run.job_threads import Copies, flush
from pelton.runtime import SystemClock

CALLED: Final = b"C"
READY: Final = b"B"
TOLD: Final = b"P"
RETURNED: Final = b"R"
RAISED: Final = b"E"
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


class ChildReply(msgspec.Struct, frozen=True):
    """What a function has returned, and what it emitted."""

    result: msgspec.Raw
    emitted: list[Outgoing]


class ChildTraceback(Exception):  # noqa: N818 - it only shows where an error was raised
    """Where a job raised an error in its child process, as text: the cause of that error."""


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
        """Tell the worker."""
        self._line.send(TOLD, self._number, _encode(JobProgress(fraction, note)))

    def close(self) -> None:
        """Do nothing: the worker stores it."""


class ChildContext(JobContext):
    """The context of a job in a child process: without steps, transactions, and word from the worker."""

    __slots__ = ()

    def __init__(self, call: ChildCall, notes: ChildNotes) -> None:
        for name in ("queue", "worker", "id", "job", "key", "attempt", "last_error", "enqueued_at", "token", "meta"):
            setattr(self, name, getattr(call, name))
        self._emitted = []
        self.tracing: Tracing | None = None
        self.flow: FlowPlace | None = None
        self._lost = ""
        self._stopping = False
        self._cancelled = None
        self._open_transaction = self._state = self._jet = None
        self._steps = self._make_steps = self._make_notes = None
        self._notes = notes


def child_main(connection: Connection) -> None:
    """Answer calls until the pipe is closed."""
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
        context = ChildContext(call, ChildNotes(line, number))
        arguments = job.decode_arguments(call.args)
        if job.context_parameter:
            arguments[job.context_parameter] = context
        # What a new child imports first does not count.
        _await_begin(line, number)
        result = job.function(**arguments)
        line.copies.end(None)
        return RETURNED, _encode(ChildReply(job.results.encode(result), context.emitted()))
    except BaseException as error:  # whatever a job raises is its outcome
        line.copies.end(error)
        return RAISED, _pickled(error)


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
    return JobDefinition(found, name, JobRules(), JobArguments(name, found))


def _pickled(error: BaseException) -> bytes:
    where = trace(error)
    if isinstance(error, Exception):
        try:
            data = pickle.dumps((error, where))
            pickle.loads(data)
        except BaseException:  # its class may be local, or its constructor unusual
            pass
        else:
            return data
    return pickle.dumps((JobError(describe(error)), where))
