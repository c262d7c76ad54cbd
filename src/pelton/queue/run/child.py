"""A child process of a worker: runs one job after another, which may block, crash or be killed.

Calls and answers travel through a pipe: arguments and results as JSON, errors pickled, each beside its traceback. The
worker decides when a job ends, so the child ignores the signals that stop workers; it ends with its pipe, and at once
if its worker dies, because another worker will run the job again.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import msgspec

from pelton.api import JobError, Outgoing
from pelton.api.tracing import Tracing
from pelton.queue.define.arguments import JobArguments
from pelton.queue.define.job import JobDefinition
from pelton.queue.model.failure import describe, trace
from pelton.queue.model.rules import JobRules
from pelton.queue.model.states import FlowPlace, JobProgress
from pelton.queue.run.context import JobContext

BEGUN: Final = b"B"
TOLD: Final = b"P"
RETURNED: Final = b"R"
RAISED: Final = b"E"
_encode: Final = msgspec.json.Encoder().encode


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


class ChildNotes:
    """Passes progress on to the worker."""

    is_used = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tell(self, fraction: float, note: str) -> None:
        """Tell the worker."""
        self._connection.send_bytes(TOLD + _encode(JobProgress(fraction, note)))

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
        self._open_transaction = None
        self._steps = self._make_steps = self._make_notes = None
        self._notes = notes


def child_main(connection: Connection) -> None:
    """Answer calls until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            return
        connection.send_bytes(_answer(_decode(data), connection))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _answer(call: ChildCall, connection: Connection) -> bytes:
    try:
        job = function_of(call.module, call.function, call.job)
        context = ChildContext(call, ChildNotes(connection))
        arguments = job.decode_arguments(call.args)
        if job.context_parameter:
            arguments[job.context_parameter] = context
        # Its time begins: what a new child imports first does not count.
        connection.send_bytes(BEGUN)
        result = job.results.encode(job.function(**arguments))
        return RETURNED + _encode(ChildReply(result, context.emitted()))
    except BaseException as error:  # whatever a job raises is its outcome
        sys.stdout.flush()
        return RAISED + _pickled(error)


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
        except Exception:  # its class may be local, or its constructor unusual
            pass
        else:
            return data
    return pickle.dumps((JobError(describe(error)), where))
