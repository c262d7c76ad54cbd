"""Copies a store or cluster, or some of its streams, to another one.

Design: Between two files, rows are copied in one transaction (``engine/maintenance/restoring.py``); between two
clusters, the servers' own snapshots are, stream by stream. Both keep everything. Between a file and a cluster, the
messages are read and stored again, stream by stream. A stream is filled without limits and marked as unfinished in its
metadata; it gets its own configuration when all is there.

Whoever is killed begins again. A stream without the mark is complete: it is compared with the original, and refused if
it is different, so that nothing is ever overwritten.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Final

from msgspec.structs import replace

from pelton.api import ConfigError, ConsumerList, StoredMessage, StreamInfo, StreamNotFoundError
from pelton.api.arguments import check_callback, check_whole, names_of_streams
from pelton.api.backend import StrPath
from pelton.api.keys import Key
from pelton.connect import Jet
from pelton.connect import open as open_store
from pelton.jet import Stream
from pelton.moving.comparing import Comparison, Differing
from pelton.moving.configs import MARK, completed, is_exclusive_on_file, losses, unfinished
from pelton.moving.consumers import copy_consumers
from pelton.moving.filling import ClusterFiller, FileFiller, Filler
from pelton.moving.headers import is_schedule
from pelton.moving.reading import pages
from pelton.moving.report import CopyReport, StreamCopy, Told

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
    nothing twice. Nothing should write to either side meanwhile. ``progress`` is called with a stream, and its messages
    done and in all.

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
        names = await here.stream_names() if chosen is None else list(chosen)
        clusters = _is_cluster(given), _is_cluster(wanted)
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
            for name in missing:
                await self._copy(name)
            # Only now: what a queue finds missing it makes anew. In each run, as the last one may have been killed.
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
            found = await self._compared(original, stream)
        except Differing as difference:
            raise ConfigError(
                f"the target has a stream {name!r} already, which is another one ({difference}): nothing is "
                "overwritten, so delete it there, or copy to another place"
            ) from None
        names = await stream.consumer_names()
        self._done.append(self._copied(name, found, (await original.info()).state.last_seq, tuple(names), True))
        return True

    # --- between two of a kind

    async def _rows(self, names: list[str], source: str, key: Key | None) -> None:
        if names:
            told = lambda done, total: self._told("", done, total)  # noqa: E731  # rows of all streams
            await self._there.restore(source, streams=names, key=key, progress=told)
        for name in names:
            await self._verify(name)

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
        copy = await self._begun(info)
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

    async def _begun(self, info: StreamInfo) -> Stream:
        with suppress(StreamNotFoundError):
            return await self._there.stream(info.config.name)
        return await self._there.create_stream(unfinished(info.config, info.state, to_cluster=self._to_cluster))

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
        schedules = [message async for message in self._schedules(original, state.last_seq)]
        now = unfinished(config, state, to_cluster=self._to_cluster)
        await self._there.update_stream(completed(config, now, to_cluster=self._to_cluster, marked=True))
        if schedules:
            await filler.begin_schedules(schedules)
            if self._to_cluster:
                self._lost.append(f"stream {config.name}: its {len(schedules)} schedules have new sequences")
        await self._verify(config.name, consumers)
        await self._there.update_stream(completed(config, now, to_cluster=self._to_cluster, marked=False))

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
            found = await self._compared_in_time(original, copy)
        except Differing as difference:
            raise ConfigError(
                f"the copy of stream {name!r} is not like its original ({difference}): if programs write to either "
                "side meanwhile, stop them; then delete the stream in the target, and copy again"
            ) from None
        if consumers is None:
            consumers = tuple(await copy.consumer_names())
        self._done.append(self._copied(name, found, (await copy.info()).state.last_seq, consumers, False))

    async def _compared_in_time(self, original: Stream, copy: Stream) -> Comparison:
        """Compare; more than once if a replica may have answered that is behind."""
        for pause in _PAUSES_S if copy.config.num_replicas > 1 else ():
            try:
                return await self._compared(original, copy)
            except Differing:
                await self._there.runtime.clock.sleep(pause)
        return await self._compared(original, copy)

    async def _compared(self, original: Stream, copy: Stream) -> Comparison:
        comparison = Comparison(exact=self._is_cluster or not self._to_cluster)
        last = (await original.info()).state.last_seq
        if comparison.is_exact and (found := (await copy.info()).state.last_seq) != last:
            raise Differing(f"its last sequence is {found}, and not {last}")
        await comparison.run(original, copy, near=(not self._is_cluster, not self._to_cluster))
        return comparison

    def _copied(
        self, name: str, found: Comparison, last: int, consumers: tuple[str, ...], was_there: bool
    ) -> StreamCopy:
        return StreamCopy(
            name=name,
            messages=found.messages,
            last_seq=last,
            checksum=found.checksum,
            consumers=consumers,
            was_there=was_there,
        )
