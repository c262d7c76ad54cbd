"""What Spark's calls start from: its active session, its workers' Python, and an open store or cluster.

**An open store file or cluster, used from Spark's blocking calls: its streams, and where they begin and end.** Spark
calls from one thread and keeps the process for as long as a query runs, so the store stays open on its own event loop
(a portal), which keeps connections alive between calls.

**Which Python Spark's workers run: this one, unless the program or its cluster decides.** Spark starts ``python3`` from
the path. A program that an environment's Python runs without activation would get another one there, without Pelton,
and the error is that there is no format of this name.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import MutableMapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark import SparkContext

from pelton import connect
from pelton.api import (
    ConsumerCreate,
    ConsumerDelete,
    DirectGet,
    DirectGetDisabledError,
    MessageNotFoundError,
    NotAStoreError,
    NotFoundError,
    StreamConfig,
    StreamInfoRequest,
    StreamNotFoundError,
    consumer_config,
    parse_rfc3339,
    rfc3339,
)
from pelton.api.keys import Key, KeyFile
from pelton.engine.upkeep import is_outdated
from pelton.spark.options import Bound, StoreOptions, is_selected
from pelton.sync.portal import BlockingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_WILD: Final = frozenset("*?[")
_COUNTING_S: Final = 5


def encryption_key(options: StoreOptions) -> Key | None:
    """Return the key of an encrypted store; None for a plain one."""
    return KeyFile(options.key_file) if options.key_file is not None else options.key


def open_store(options: StoreOptions, *, read_only: bool = False) -> connect.Opening:
    """Open a store file or a cluster. Raises NotAStoreError: Spark never creates a store."""
    if options.is_cluster:
        return connect.open(options.address, **options.login)
    if not os.path.exists(options.address):
        raise NotAStoreError(options.address, "there is no such file; give an absolute path, Spark has its own folder")
    return connect.open(options.address, key=encryption_key(options), read_only=read_only)


def _is_outdated(options: StoreOptions) -> bool:
    is_file = not options.is_cluster and os.path.exists(options.address)
    return is_file and is_outdated(options.address, encryption_key(options))


@dataclass(frozen=True)
class StreamView:
    """A snapshot of a stream. ``created`` (RFC 3339) distinguishes it from a later stream of the same name."""

    config: StreamConfig
    created: str
    first: int
    last: int
    messages: int
    bytes: int
    last_time: str

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def is_gapless(self) -> bool:
        """Whether every sequence from the first to the last is stored."""
        return self.messages == self.last - self.first + 1

    @property
    def allows_transient_consumers(self) -> bool:
        """Whether a transient consumer has no side effects: on a work queue it is refused, or keeps messages."""
        return self.config.retention == "limits"

    @property
    def drops_oldest(self) -> bool:
        """Whether only limits and purges remove its first messages, so that a reader that misses them lost them.

        In a work queue, acknowledged messages are removed; in a bucket, those that were replaced.
        """
        return self.config.retention == "limits" and self.config.max_msgs_per_subject <= 0


class StoreHandle(BlockingStore):
    """An open store file or cluster; close it after use.

    ``looks``: it is only read, so a file that an older Pelton wrote is not migrated (ADR 0037).
    """

    def __init__(self, options: StoreOptions, *, looks: bool = False) -> None:
        self.options = options
        self._is_read_only = looks and _is_outdated(options)
        super().__init__(options.address, lambda: open_store(options, read_only=self._is_read_only))

    def streams(self, patterns: Sequence[str]) -> list[StreamView]:
        """Return the streams of names and patterns, sorted. Raises StreamNotFoundError for a name without a stream."""
        names = {pattern for pattern in patterns if not _WILD & set(pattern)}
        wild = [pattern for pattern in patterns if pattern not in names]
        if wild:
            there = self.run(self.jet.stream_names)
            names |= {name for name in there if is_selected(name, wild)}
        return [self.stream(name) for name in sorted(names)]

    def present(self, patterns: Sequence[str]) -> list[StreamView]:
        """Return the same streams, but skip names without a stream."""
        there = self.run(self.jet.stream_names)
        names = [name for name in there if is_selected(name, patterns)]
        found: list[StreamView] = []
        for name in sorted(names):
            # It may have been deleted since.
            with suppress(StreamNotFoundError):
                found.append(self.stream(name))
        return found

    def stream(self, name: str) -> StreamView:
        """Return a snapshot of a stream. Raises StreamNotFoundError."""
        info = self.run(self.jet.backend.call, StreamInfoRequest(name=name))
        state = info.state
        first = max(state.first_seq, 1)
        return StreamView(info.config, info.created, first, state.last_seq, state.messages, state.bytes, state.last_ts)

    def sequence(self, stream: StreamView, bound: Bound) -> int:
        """Return the first sequence at or after a bound; the last one plus 1 if there is none."""
        if bound.kind == "earliest":
            return stream.first
        if bound.kind == "sequence":
            return bound.value
        if bound.kind == "latest" or not stream.messages or parse_rfc3339(stream.last_time) < bound.value:
            return stream.last + 1
        return self.run(self._first_at, stream, rfc3339(bound.value))

    async def _first_at(self, stream: StreamView, time: str) -> int:
        request = DirectGet(start_time=time, next_by_subj=">", batch=1)
        try:
            return (await self.jet.backend.direct_get(stream.name, request)).messages[0].seq
        except MessageNotFoundError:
            return stream.last + 1
        except DirectGetDisabledError:
            if not stream.allows_transient_consumers:
                raise
        handle = await self.jet.stream(stream.name)
        async with aclosing(handle.ordered(deliver_policy="by_start_time", opt_start_time=time)) as messages:  # type: ignore[type-var]  # an async generator
            async for message in messages:
                return message.delivered.seq
        return stream.last + 1

    def count_from(self, stream: StreamView, seq: int, filters: Sequence[str]) -> int:
        """Return the number of messages from a sequence on.

        For a work queue, and a file of an older Pelton, it can be too high: if filters overlap, or if direct gets are
        not allowed.
        """
        span = max(stream.last - max(seq, stream.first) + 1, 0)
        if not span or (stream.is_gapless and not filters):
            return span
        if stream.allows_transient_consumers and not self._is_read_only:
            return self.run(self._count, stream, max(seq, 1), filters)
        if not stream.config.allow_direct:
            return span
        return sum(self.run(self._count_directly, stream, seq, subject) for subject in filters or (">",))

    async def _count_directly(self, stream: StreamView, seq: int, subject: str) -> int:
        request = DirectGet(seq=max(seq, 1), next_by_subj=subject, batch=1)
        try:
            reply = await self.jet.backend.direct_get(stream.name, request)
        except MessageNotFoundError:
            return 0
        return len(reply.messages) + reply.num_pending

    async def _count(self, stream: StreamView, seq: int, filters: Sequence[str]) -> int:
        """Count with a consumer that is deleted at once: its ``num_pending``."""
        fields = {"filter_subjects": list(filters)} if filters else {}
        config = consumer_config(
            deliver_policy="by_start_sequence",
            opt_start_seq=seq,
            ack_policy="none",
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_COUNTING_S,
            **fields,
        )
        info = await self.jet.backend.call(ConsumerCreate(stream_name=stream.name, config=config))
        with suppress(NotFoundError):
            await self.jet.backend.call(ConsumerDelete(stream=stream.name, name=info.name))
        return info.num_pending


# --- the thread's active Spark session


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread: ``df.write`` looks up Python data sources only there."""
    session = getattr(spark, "_jsparkSession", None)
    # Spark Connect sessions have none: there, the server looks up the data source.
    if session is not None and spark._jvm is not None:
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)


_DECIDED: Final = (
    # The user decides.
    "PYSPARK_PYTHON",
    # spark-submit has started the JVM, which decides; a worker does not start workers.
    "PYSPARK_GATEWAY_PORT",
    "PYTHON_WORKER_FACTORY_PORT",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
)


def choose_python(environ: MutableMapping[str, str], executable: str, running: str | None) -> str | None:
    """Set the workers' Python for a session that starts later; return a warning if one runs that started another.

    ``running`` is the Python that the workers of a running session have, None without a session.
    """
    if not executable or any(name in environ for name in _DECIDED):
        return None
    if running is None:
        environ["PYSPARK_PYTHON"] = executable
        environ.setdefault("PYSPARK_DRIVER_PYTHON", executable)
        return None
    if os.path.abspath(running) == os.path.abspath(executable):
        return None
    return (
        f"Spark's workers run {running}, not {executable}: without Pelton there, format('pelton') is not found; "
        "import pelton.spark before you start the session, or set PYSPARK_PYTHON"
    )


def python_of_session() -> str | None:
    """Return the Python that the running session's workers have; None without a session."""
    context = SparkContext._active_spark_context
    if context is None:
        return None
    return shutil.which(context.pythonExec) or context.pythonExec


def choose_for_this_process(executable: str) -> None:
    warning = choose_python(os.environ, executable, python_of_session())
    if warning is not None:
        warnings.warn(warning, RuntimeWarning, stacklevel=3)
