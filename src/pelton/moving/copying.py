"""Copies a store or cluster, or some of its streams, to another one.

Design: Between two files, rows are copied in one transaction, which compares them before it is committed
(``storage/copies.py``): both may be at work. Between two clusters, the servers' own snapshots are copied, stream by
stream. Both keep everything. Between a file and a cluster, the messages are read and stored again, stream by stream. A
stream is filled without limits and marked as unfinished in its metadata; it gets its own configuration when all is
there.

A copy that was killed resumes when it is run again. A stream without the mark is complete: it is compared with the
original, and refused if it is different, so that nothing is ever overwritten. Between two files, a copy has the time at
which its original was created, so that the error can say that one of them has changed since.

**Copies the consumers of a stream, and how far each has come.** A copied consumer continues behind the original's ack
floor. What was acknowledged above it, which only a store file can tell, is acknowledged in the copy as well; what was
delivered and not acknowledged is delivered again.

**Fills a copy with messages: a file stores them as they were, a cluster has them published.** A store file takes
messages with their sequences and times. A cluster gives its own: each message is published after the one before it, so
it gets the same sequence, because the stream begins at the original's first one, and a message on a subject of its own
stands for each that was deleted; those are purged in the end. A copy that was killed resumes after the last sequence
that it has: nothing is stored twice, as nobody else writes to it. Should a cluster have stored a message under
another sequence, because an answer was lost and the message repeated, the copy is refused, and the next run
begins from the start.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, Protocol

from msgspec.structs import replace

from pelton.api import (
    ConfigError,
    ConsumerList,
    MessageNotFoundError,
    Outgoing,
    StoredMessage,
    StoreError,
    StreamConfig,
    StreamFill,
    StreamInfo,
    StreamNotFoundError,
)
from pelton.api.arguments import check_callback, check_whole, names_of_streams
from pelton.api.backend import StrPath
from pelton.api.keys import Key
from pelton.buckets.bucket import TOKENS_BUCKET
from pelton.buckets.bucket_settings import stream_of
from pelton.connect import Jet
from pelton.connect import open as open_store
from pelton.jet import Stream, Streams
from pelton.jet.stream import AUDIT_STREAM
from pelton.moving.configs import (
    MARK,
    CopyReport,
    StreamCopy,
    as_published,
    completed_config,
    config_while_filling,
    filler_of,
    has_expired,
    is_exclusive_on_file,
    is_schedule,
    losses,
)
from pelton.moving.continuing import copy_consumers, raise_tokens_above, with_first_token

_PAGE: Final = 500
_READS_AT_ONCE: Final = 128


async def pages(stream: Stream, seq: int, last: int, *, is_near: bool) -> AsyncGenerator[list[StoredMessage], None]:
    """Yield the messages from ``seq`` to ``last``, in order; ``is_near``: an answer needs no round trip."""
    while seq <= last:
        if stream.config.allow_direct:
            found = await stream.get_messages(_PAGE, seq=seq)
        elif is_near:
            found = await _one_by_one(stream, seq)
        else:
            found = await _side_by_side(stream, seq, last)
        page = [message for message in found if message.seq <= last]
        if not page:
            return
        yield page
        seq = page[-1].seq + 1


async def _one_by_one(stream: Stream, seq: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while len(found) < _PAGE:
        try:
            found.append(await stream.get_next_message(">", seq))
        except MessageNotFoundError:
            break
        seq = found[-1].seq + 1
    return found


async def _side_by_side(stream: Stream, seq: int, last: int) -> list[StoredMessage]:
    wanted = range(seq, min(seq + _READS_AT_ONCE, last + 1))
    found = [one for one in await asyncio.gather(*(_at(stream, each) for each in wanted)) if one is not None]
    if found or wanted[-1] == last:
        return found
    try:
        # Beyond a gap.
        return [await stream.get_next_message(">", wanted[-1] + 1)]
    except MessageNotFoundError:
        return []


async def _at(stream: Stream, seq: int) -> StoredMessage | None:
    try:
        return await stream.get_message(seq)
    except MessageNotFoundError:
        return None


_SIZE: Final = 16


class Differing(Exception):  # noqa: N818 - a finding
    """The first difference between a stream and its copy."""


class Comparison:
    """The comparison of one stream; ``exact``: headers and times are the same, and schedules have their sequences.

    ``clock`` tells the time in ns: messages that have expired by then may be missing on either side.
    """

    messages: int

    def __init__(self, clock: Callable[[], int], *, exact: bool) -> None:
        self.is_exact = exact
        self._clock = clock
        self._digest = hashlib.blake2b(digest_size=_SIZE)
        self.messages = 0

    @property
    def checksum(self) -> str:
        """A checksum over what was compared."""
        return self._digest.hexdigest()

    async def run(self, one: Stream, other: Stream, *, near: tuple[bool, bool]) -> None:
        """Compare all messages. Raises Differing."""
        config = one.config
        theirs = self._each(other, is_near=near[1])
        async with aclosing(self._each(one, is_near=near[0])) as mine, aclosing(theirs):
            found = await anext(theirs, None)
            async for message in mine:
                while found is not None and found.seq < message.seq:
                    self._check_expired(found, config, "is only in the copy")
                    found = await anext(theirs, None)
                if found is None or self._facts(message) != self._facts(found):
                    self._check_expired(message, config, "differs, or is missing in the copy")
                    continue
                self._count(message)
                found = await anext(theirs, None)
            while found is not None:
                self._check_expired(found, config, "is only in the copy")
                found = await anext(theirs, None)

    def _check_expired(self, message: StoredMessage, config: StreamConfig, problem: str) -> None:
        if not has_expired(message, config, self._clock()):
            raise Differing(f"message {message.seq} {problem}")

    def _count(self, message: StoredMessage) -> None:
        *facts, data = self._facts(message)
        self._digest.update(repr((*facts[:3], len(data), *facts[3:])).encode() + data)
        self.messages += 1

    async def _each(self, stream: Stream, *, is_near: bool) -> AsyncGenerator[StoredMessage, None]:
        state = (await stream.info()).state
        async with aclosing(pages(stream, max(state.first_seq, 1), state.last_seq, is_near=is_near)) as found:
            async for page in found:
                for message in page:
                    if self.is_exact or not is_schedule(message):
                        yield message

    def _facts(self, message: StoredMessage) -> tuple[Any, ...]:
        if self.is_exact:
            return (message.seq, message.subject, message.hdrs, message.time_ns, message.data)
        return (message.seq, message.subject, as_published(message), message.data)


_PUBLISHED_AT_ONCE: Final = 500


class Filler(Protocol):
    """One kind of target."""

    async def fill(self, page: Sequence[StoredMessage]) -> None:
        """Store the next messages."""

    async def end(self, last: int) -> None:
        """Skip what was deleted at the end, up to the sequence ``last``."""

    async def begin_schedules(self, schedules: Sequence[StoredMessage]) -> None:
        """Let the schedules of the complete stream run."""


class FileFiller:
    """Fills a stream of a store file."""

    def __init__(self, jet: Streams, stream: str) -> None:
        self._jet = jet
        self._stream = stream

    async def fill(self, page: Sequence[StoredMessage]) -> None:
        """Store the next messages, in one transaction."""
        await self._jet.backend.call(StreamFill(stream=self._stream, messages=tuple(page)))

    async def end(self, last: int) -> None:
        """Skip the sequences up to ``last``."""
        await self._jet.backend.call(StreamFill(stream=self._stream, last_seq=last))

    async def begin_schedules(self, schedules: Sequence[StoredMessage]) -> None:
        """Let the schedules run."""
        sequences = tuple(message.seq for message in schedules)
        await self._jet.backend.call(StreamFill(stream=self._stream, schedules=sequences))


class ClusterFiller:
    """Fills a stream of a cluster, from the sequence after ``last`` on."""

    def __init__(self, jet: Streams, stream: Stream, last: int) -> None:
        self._jet = jet
        self._stream = stream
        self.last: int = last
        self._blank = Outgoing(filler_of(stream.name), b"")

    def _outgoing(self, message: StoredMessage | None, after: int) -> Outgoing:
        """Return what is published after the sequence ``after``: a message, or what keeps the place of one."""
        if message is None or is_schedule(message):
            return self._blank
        return Outgoing(message.subject, message.data, as_published(message))

    async def fill(self, page: Sequence[StoredMessage]) -> None:
        """Publish the next messages, and others in the place of those that are not there."""
        batch: list[Outgoing] = []
        for message in page:
            while (after := self.last + len(batch)) < message.seq - 1:
                batch.append(self._outgoing(None, after))
                batch = await self._send_if_full(batch)
            batch.append(self._outgoing(message, after))
            batch = await self._send_if_full(batch)
        await self._publish(batch)

    async def skip(self, last: int) -> None:
        """Publish in the place of those up to the sequence ``last``."""
        while (left := last - self.last) > 0:
            afters = range(self.last, self.last + min(left, _PUBLISHED_AT_ONCE))
            await self._publish([self._outgoing(None, after) for after in afters])

    async def end(self, last: int) -> None:
        """Publish in the place of the last ones, and remove all that only held a place."""
        await self.skip(last)
        await self._stream.purge(filter=self._blank.subject)

    async def begin_schedules(self, schedules: Sequence[StoredMessage]) -> None:
        """Publish the schedules that are not there yet; they get sequences at the end."""
        for message in schedules:
            try:
                if (await self._stream.get_last_message(message.subject)).data == message.data:
                    continue
            except MessageNotFoundError:
                pass
            await self._jet.backend.publish(message.subject, message.data, as_published(message))

    async def _send_if_full(self, batch: list[Outgoing]) -> list[Outgoing]:
        if len(batch) < _PUBLISHED_AT_ONCE:
            return batch
        await self._publish(batch)
        return []

    async def _publish(self, batch: Sequence[Outgoing]) -> None:
        if not batch:
            return
        acks = await self._jet.backend.publish_batch(batch)
        expected = range(self.last + 1, self.last + 1 + len(batch))
        if [ack.seq for ack in acks] != list(expected):
            raise StoreError(self._stream.name, "others write to this stream, or an answer was lost: copy it again")
        self.last = expected[-1]


# --- the copy of a store

Told = Callable[[str, int, int], object]
"""Called with a stream's name, and the numbers of messages done and in all."""

_JOBS: Final = "JOBS_"
_PAUSES_S: Final = (0.1, 0.3, 1.0, 3.0)
_OF_CLUSTERS: Final = (
    "messages have the time at which they were copied: ages and times to live count from then",
    "headers about the first publish are left out: Nats-Expected-..., Nats-Stream-Source, Nats-Scheduler",
)


async def copy(
    source: StrPath,
    target: StrPath,
    *,
    streams: Sequence[str] | None = None,
    key: Key | None = None,
    target_key: Key | None = None,
    num_replicas: int | None = None,
    progress: Told | None = None,
) -> CopyReport:
    """Copy all streams of a store or cluster, or some, with their consumers, into another one, and compare them.

    Addresses are those of :func:`pelton.open`; ``key`` and ``target_key`` are those of encrypted files. Buckets, object
    stores and queues are streams. From a file to a cluster, each stream is kept on ``num_replicas`` servers (1 by
    default); between clusters, on as many as the original. Killed at any time and run again, it completes, and copies
    nothing twice. Between files, the copy is the store at one moment, and both may be in use. To or from a cluster,
    nothing should write to either side meanwhile. ``progress`` is called with a stream, and its messages done and in
    all.

    Raises ConfigError if the target has a stream of that name with other contents, or if somebody writes meanwhile;
    StreamNotFoundError, StoreError, ApiError.
    """
    check_callback("copy", "progress", progress)
    if num_replicas is not None:
        check_whole("copy", "num_replicas", num_replicas, 1)
        if _is_cluster(os.fspath(source)) or not _is_cluster(os.fspath(target)):
            raise ConfigError("num_replicas is for a copy from a file to a cluster: leave it out")
    chosen = names_of_streams("copy", streams)
    given, wanted = os.fspath(source), os.fspath(target)
    one = open_store(given) if _is_cluster(given) else open_store(given, key=key, read_only=True)
    # Ids of their own would be headers that the originals do not have.
    other = open_store(wanted, message_ids=False) if _is_cluster(wanted) else open_store(wanted, key=target_key)
    async with one as here, other as there:
        # What was done to a store is told of that store.
        clusters = _is_cluster(given), _is_cluster(wanted)
        # Where fencing tokens begin is written anew on a cluster.
        apart = {AUDIT_STREAM, stream_of(TOKENS_BUCKET)} if clusters == (False, True) else {AUDIT_STREAM}
        every = [name for name in await here.stream_names() if name not in apart]
        names = every if chosen is None else list(chosen)
        copying = _Copying(here, there, clusters, num_replicas, progress or _nothing)
        return await copying.run(names, given, key)


def _is_cluster(address: str) -> bool:
    return "://" in address or address.startswith("context:")


def _nothing(stream: str, done: int, total: int) -> None:
    return None


class _Copying:
    def __init__(
        self, here: Jet, there: Jet, clusters: tuple[bool, bool], num_replicas: int | None, told: Told
    ) -> None:
        self._here = here
        self._num_replicas = num_replicas
        self._there = there
        self._is_cluster, self._to_cluster = clusters
        self._told = told
        self._done: list[StreamCopy] = []
        self._lost: list[str] = list(_OF_CLUSTERS) if clusters == (False, True) else []

    async def run(self, names: list[str], source: str, key: Key | None) -> CopyReport:
        missing = [name for name in names if not await self._is_there(name)]
        if self._is_cluster == self._to_cluster:
            await (self._snapshots(missing) if self._is_cluster else self._rows(missing, source, key))
        else:
            if self._to_cluster:
                await raise_tokens_above(self._here, self._there, names, self._num_replicas or 1)
            for name in missing:
                await self._copy(name)
            # After the streams, because opening a queue creates those that are missing. In each run, because the last
            # one may have been killed here.
            await self._open_exclusive(names)
        return CopyReport(streams=tuple(sorted(self._done, key=lambda one: one.name)), lost=tuple(self._lost))

    async def _is_there(self, name: str) -> bool:
        """Whether a stream was copied before. Raises ConfigError if it is another one."""
        original = await self._here.stream(name)
        try:
            stream = await self._there.stream(name)
        except StreamNotFoundError:
            return False
        if MARK in stream.config.metadata:
            return False
        try:
            found = await self._compare(original, stream)
        except Differing as difference:
            raise ConfigError(
                f"the target has a stream {name!r} already, which {await self._what_it_is(original, stream)} "
                f"({difference}): nothing is overwritten, so delete it there, or copy to another place"
            ) from None
        consumers = tuple(await stream.consumer_names())
        last = (await original.info()).state.last_seq
        self._add(name, found.messages, last, found.checksum, consumers, was_there=True)
        return True

    async def _what_it_is(self, original: Stream, stream: Stream) -> str:
        # A copy between files has the time at which its original was created.
        are_files = not self._is_cluster and not self._to_cluster
        if are_files and (await stream.info()).created == (await original.info()).created:
            return "was copied before, and one of the two has changed since"
        return "is another one"

    # --- between two of a kind

    async def _rows(self, names: list[str], source: str, key: Key | None) -> None:
        if not names:
            return
        there = self._there.backend.to_embedded("copy")
        told = lambda done, total: self._told("", done, total)  # noqa: E731  # rows of all streams
        for found in await there.copy_streams(source, names, key, told):
            consumers = await (await self._there.stream(found.name)).consumer_names()
            self._add(found.name, found.messages, found.last_seq, found.checksum, tuple(consumers))

    async def _snapshots(self, names: list[str]) -> None:
        for name in names:
            with tempfile.TemporaryDirectory(prefix="pelton-copy-") as folder:
                path = os.path.join(folder, "snapshot")
                await self._here.backup(path, streams=[name])
                await self._there.restore(path, streams=[name])
            await self._verify(name)

    # --- between a file and a cluster

    async def _copy(self, name: str) -> None:
        info = await (await self._here.stream(name)).info()
        if self._num_replicas is not None:
            info = replace(info, config=replace(info.config, num_replicas=self._num_replicas))
        if self._to_cluster and info.config.allow_msg_counter:
            self._lost.append(f"stream {name}: it was left out: a cluster would count its counters again")
            return
        original = await self._here.stream(name)
        copy = await self._begin(info)
        if info.config.retention == "interest":
            # Messages in which nobody is interested are not kept.
            for listed in (await self._here.backend.call(ConsumerList(stream=name))).consumers:
                await copy.create_consumer(listed.config)
        filler = await self._fill(original, copy, info)
        consumers: tuple[str, ...] = ()
        if not (self._to_cluster and is_exclusive_on_file(info.config)):
            consumers = await copy_consumers(self._there, self._here, name, copy, self._lost)
        await self._complete(original, info, filler, consumers)
        self._lost += losses(info.config, to_cluster=self._to_cluster)

    async def _open_exclusive(self, names: list[str]) -> None:
        """Let the exclusive queues make what they need on a cluster alone: the streams of their keys."""
        for name in names if self._to_cluster else ():
            if is_exclusive_on_file((await self._here.stream(name)).config):
                await self._there.queue(name.removeprefix(_JOBS), create=False, num_replicas=self._num_replicas)

    async def _begin(self, info: StreamInfo) -> Stream:
        with suppress(StreamNotFoundError):
            return await self._there.stream(info.config.name)
        config = config_while_filling(info.config, info.state, to_cluster=self._to_cluster)
        return await self._there.create_stream(config)

    async def _fill(self, original: Stream, copy: Stream, info: StreamInfo) -> Filler:
        last, at = info.state.last_seq, (await copy.info()).state.last_seq
        filler: Filler = FileFiller(self._there, copy.name)
        if self._to_cluster:
            filler = ClusterFiller(self._there, copy, at)
        done = 0
        async with aclosing(pages(original, at + 1, last, is_near=not self._is_cluster)) as found:
            async for page in found:
                await filler.fill(page)
                done += len(page)
                self._told(copy.name, done, info.state.messages)
        await filler.end(last)
        return filler

    async def _complete(self, original: Stream, info: StreamInfo, filler: Filler, consumers: tuple[str, ...]) -> None:
        """Give a filled stream its own configuration; the mark goes when it was compared."""
        config, state = info.config, info.state
        if self._to_cluster:
            config = await with_first_token(self._there, config, self._num_replicas or 1)
        schedules = [message async for message in self._schedules(original, state.last_seq)]
        now = config_while_filling(config, state, to_cluster=self._to_cluster)
        await self._there.update_stream(completed_config(config, now, to_cluster=self._to_cluster, marked=True))
        if schedules:
            await filler.begin_schedules(schedules)
            if self._to_cluster:
                self._lost.append(f"stream {config.name}: its {len(schedules)} schedules have new sequences")
        await self._verify(config.name, consumers)
        await self._there.update_stream(completed_config(config, now, to_cluster=self._to_cluster, marked=False))

    async def _schedules(self, original: Stream, last: int) -> AsyncGenerator[StoredMessage, None]:
        if not original.config.allow_msg_schedules:
            return
        async with aclosing(pages(original, 1, last, is_near=not self._is_cluster)) as found:
            async for page in found:
                for message in page:
                    if is_schedule(message):
                        yield message

    # --- verifying

    async def _verify(self, name: str, consumers: tuple[str, ...] | None = None) -> None:
        original, copy = await self._here.stream(name), await self._there.stream(name)
        try:
            found = await self._compare_in_time(original, copy)
        except Differing as difference:
            raise ConfigError(
                f"the copy of stream {name!r} is not like its original ({difference}): if programs write to either "
                "side meanwhile, stop them; then delete the stream in the target, and copy again"
            ) from None
        if consumers is None:
            consumers = tuple(await copy.consumer_names())
        self._add(name, found.messages, (await copy.info()).state.last_seq, found.checksum, consumers)

    async def _compare_in_time(self, original: Stream, copy: Stream) -> Comparison:
        """Compare; more than once if a replica may have answered that is behind."""
        for pause in _PAUSES_S if copy.config.num_replicas > 1 else ():
            try:
                return await self._compare(original, copy)
            except Differing:
                await self._there.runtime.clock.sleep(pause)
        return await self._compare(original, copy)

    async def _compare(self, original: Stream, copy: Stream) -> Comparison:
        comparison = Comparison(self._there.runtime.clock.now, exact=self._is_cluster or not self._to_cluster)
        last = (await original.info()).state.last_seq
        if comparison.is_exact and (found := (await copy.info()).state.last_seq) != last:
            raise Differing(f"its last sequence is {found}, and not {last}")
        await comparison.run(original, copy, near=(not self._is_cluster, not self._to_cluster))
        return comparison

    def _add(
        self, name: str, messages: int, last: int, checksum: str, consumers: tuple[str, ...], *, was_there: bool = False
    ) -> None:
        self._done.append(
            StreamCopy(
                name=name, messages=messages, last_seq=last, checksum=checksum, consumers=consumers, was_there=was_there
            )
        )
