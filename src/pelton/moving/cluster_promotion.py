"""Makes a standby on a NATS cluster the store (``cluster_standby.py``).

In this order; killed anywhere, it is done by doing it again:

1. The note says that the standby is being promoted: from then on its follower writes nothing more. What it has ordered
   the servers to delete is waited for.
2. The old store is told, if it can be reached, and the rest of it is copied.
3. Streams that are made from now on begin far above all fencing tokens that the old store can have given: those of the
   keys of exclusive queues are, and so are those of locks and elections. These get the leases that were held, as if
   they were renewed just now, so that their holders cannot renew them and nobody else gets them too early.
4. Each stream gets its own configuration, its consumers where they were, and its schedules. A stream tells by its
   metadata that it is not complete yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec.structs import replace

from pelton.api import (
    ConfigError,
    MessageNotFoundError,
    PeltonError,
    StoreBusyError,
    StoredMessage,
    StoreStandbyError,
    StreamConfig,
    StreamNotFoundError,
    WrongLastSequenceError,
    headers,
)
from pelton.api.keys import Key, key_bytes
from pelton.buckets import reserve_first_token
from pelton.buckets.bucket import TOKENS_BUCKET, raise_first_tokens
from pelton.connect import Jet
from pelton.connect import open as open_store
from pelton.engine.host import public_error
from pelton.jet import Stream
from pelton.moving.cluster_standby import ClusterNote, ClusterWriter, StandbyBucket, open_target, standby_bucket
from pelton.moving.configs import (
    STANDBY,
    completed_config,
    filler_of,
    is_exclusive_on_file,
    kept_name,
    schedules_of,
    with_effect,
)
from pelton.moving.continuing import KeptStream, place_consumer, with_first_token
from pelton.moving.served_log import FollowedFile, check_source, followed_store, name_of, open_followed
from pelton.queue.setup import EXCLUSIVE
from pelton.runtime import Deadline, on_thread
from pelton.storage import TOKEN_EPOCH, Fault

_JOBS: Final = "JOBS_"
# A follower that runs sees in the note that it has ended, when its turn is over.
_PATIENCE_S: Final = 20.0
_PAUSE_S: Final = 0.02
# More than a store raises its floor in its life (storage/copies.py).
_EPOCHS: Final = 1 << 12
_PAGE: Final = 500
_AT_ONCE: Final = 32


class Promoted(NamedTuple):
    """What the store had become, when it was replaced; ``problem`` is why it is not complete."""

    note: ClusterNote
    problem: str


async def note_on_cluster(address: str) -> ClusterNote:
    """Return what a cluster is to a store. Raises ConfigError if it is no standby."""
    async with open_target(address) as there:
        found = await (await standby_bucket(there, name_of(address))).read()
    if found is None:
        raise ConfigError(f"{name_of(address)!r} is no standby yet: its follower has not begun")
    return found


async def promote_on_cluster(address: str, *, key: Key | None, ask_source: bool, source: str | None) -> Promoted:
    """Make the standby on a cluster the store; see :func:`pelton.moving.promote`."""
    name = name_of(address)
    async with open_target(address) as there:
        bucket = await standby_bucket(there, name)
        note = await bucket.read()
        if note is None or not note.copied_ns:
            raise ConfigError(f"{name!r} is no standby yet: its first copy is not complete")
        if note.state == "store":
            raise ConfigError(f"{name!r} is the store already")
        if source is not None:
            check_source(note.source, source)
        problem = "the old store was not asked" if note.state == "standby" else "it was interrupted before"
        await _claim(bucket, note)
        await bucket.settle_orders()
        if ask_source and not note.is_whole:
            problem = await _complete(there, bucket, name, source or note.source, key)
        note = await bucket.read() or note
        await bucket.write(replace(note, is_whole=True))
        await _Promotion(there, bucket, note).run()
        await bucket.take_orders(are_taken=False)
        await bucket.write(replace(note, state="store"))
    return Promoted(note, problem)


async def _claim(bucket: StandbyBucket, note: ClusterNote) -> None:
    """Note that it is being promoted; its follower may write meanwhile."""
    while True:
        try:
            return await bucket.write(replace(note, state="promoting"))
        except StoreStandbyError:
            found = await bucket.read()
            if found is None or found.state != "standby":
                raise
            note = found


async def _complete(there: Jet, bucket: StandbyBucket, name: str, source: str, key: Key | None) -> str:
    """Tell the old store that it was replaced, and copy the rest of it; return what has kept it from that."""
    followed = followed_store(source, key_bytes(key), name, is_promoting=True)
    try:
        await on_thread(lambda _: followed.fence(name))
    except (Fault, OSError) as error:
        if isinstance(error, Fault) and error.kind == "standby":
            await _be_standby(bucket)
            raise public_error(error) from None
        return f"the old store could not be reached: {error}"
    try:
        async with open_followed(followed), open_store(followed.path, key=key, read_only=True) as here:
            writer = ClusterWriter(here, there, followed, name, None)
            await writer.begin(is_promoting=True)
            deadline = Deadline(there.runtime.clock, _PATIENCE_S)
            while not await _is_done(writer, deadline):
                await there.runtime.clock.sleep(_PAUSE_S)
    except Exception as error:
        await _give_up(bucket, followed)
        raise public_error(error) from None
    except BaseException:
        await _give_up(bucket, followed)
        raise
    await on_thread(lambda _: followed.end())
    return ""


async def _give_up(bucket: StandbyBucket, followed: FollowedFile) -> None:
    """Let the old store go on, and its standby be one."""
    with suppress(Fault, OSError):
        await on_thread(lambda _: followed.unfence())
    await _be_standby(bucket)


async def _be_standby(bucket: StandbyBucket) -> None:
    with suppress(PeltonError):
        if (note := await bucket.read()) is not None:
            await bucket.write(replace(note, state="standby"))


async def _is_done(writer: ClusterWriter, deadline: Deadline) -> bool:
    try:
        return await writer.turn() is not None
    except (StoreBusyError, WrongLastSequenceError):
        if deadline.is_over:
            raise
        return False


class _Promotion:
    def __init__(self, there: Jet, bucket: StandbyBucket, note: ClusterNote) -> None:
        self._there = there
        self._bucket = bucket
        self._note = note
        self._tokens = note.tokens + _EPOCHS * TOKEN_EPOCH

    async def run(self) -> None:
        streams = await self._bucket.streams()
        # New streams begin above what it says.
        of_tokens = f"KV_{TOKENS_BUCKET}"
        if of_tokens in streams:
            await self._finish(streams.pop(of_tokens))
        queues = [name.removeprefix(_JOBS) for name, kept in streams.items() if EXCLUSIVE in kept.config.metadata]
        begun = [f"{_JOBS}{queue}_{what}" for queue in queues for what in ("keys", "tokens")]
        apart = [name for name, kept in streams.items() if kept.is_apart]
        lasts = (kept.last_seq for kept in streams.values() if kept.is_apart)
        above = max(self._tokens, *lasts, 0) if apart else self._tokens
        await raise_first_tokens(self._there, above, [*begun, *apart], self._note.num_replicas)
        left = [*streams.values()]
        while left:
            some, left = left[:_AT_ONCE], left[_AT_ONCE:]
            finishing = (self._rebuild(kept) if kept.is_apart else self._finish(kept) for kept in some)
            # All have ended before the first error is raised.
            for ended in await asyncio.gather(*finishing, return_exceptions=True):
                if ended is not None:
                    raise ended
        for queue in queues:
            if is_exclusive_on_file(streams[_JOBS + queue].config):
                await self._there.queue(queue, create=False, num_replicas=self._note.num_replicas)

    async def _finish(self, kept: KeptStream) -> None:
        """Make a stream of the standby what it was in the store."""
        name, config = kept.config.name, kept.config
        stream = await self._there.stream(name)
        if STANDBY not in stream.config.metadata:
            return
        final = completed_config(config, stream.config, to_cluster=True, marked=False)
        final = await with_first_token(self._there, final, self._note.num_replicas)
        # Without consumers, nothing would be kept.
        early = "limits" if final.retention == "interest" else final.retention
        unfinished = final.metadata | {STANDBY: "promoting"}
        # The prefix of the schedules is gone then, as is that of the follower.
        await self._there.update_stream(replace(final, retention=early, metadata=unfinished, allow_direct=True))
        await stream.purge(filter=filler_of(name))
        if not is_exclusive_on_file(config):
            for consumer in kept.consumers:
                made = await stream.create_consumer(consumer.info.config)
                unsettled = None if consumer.unsettled is None else {*consumer.unsettled}
                await place_consumer(self._there, consumer.info, made, unsettled)
        await self._begin_schedules(stream, final)
        await self._there.update_stream(final)

    async def _begin_schedules(self, stream: Stream, config: StreamConfig) -> None:
        prefix = schedules_of(stream.name)
        if not config.allow_msg_schedules:
            return
        for message in await self._all(stream, prefix + ">"):
            await self._store(stream, message.subject.removeprefix(prefix), message)
        await stream.purge(filter=prefix + ">")

    async def _rebuild(self, kept: KeptStream) -> None:
        """Make a stream of fencing tokens anew, above all of them, with the leases that are held."""
        name, before = kept.config.name, kept_name(kept.config.name, is_apart=True)
        config = completed_config(kept.config, kept.config, to_cluster=True, marked=False)
        try:
            stream = await self._there.stream(name)
        except StreamNotFoundError:
            first = await reserve_first_token(self._there, name, self._note.num_replicas)
            unfinished = config.metadata | {STANDBY: "promoting"}
            stream = await self._there.create_stream(replace(config, first_seq=first, metadata=unfinished))
        if STANDBY in stream.config.metadata:
            for message in await self._all(await self._there.stream(before), config.subjects[0]):
                await self._store(stream, message.subject, message)
            await self._there.update_stream(replace(config, first_seq=stream.config.first_seq))
        with suppress(StreamNotFoundError):
            await self._there.delete_stream(before)

    async def _all(self, stream: Stream, subjects: str) -> Sequence[StoredMessage]:
        found, seq = list[StoredMessage](), 1
        while page := await stream.get_messages(_PAGE, seq=seq, subject=subjects):
            found += page
            seq = page[-1].seq + 1
        return found

    async def _store(self, stream: Stream, subject: str, message: StoredMessage) -> None:
        """Store a message that was kept without effect, unless an interrupted run has."""
        with suppress(MessageNotFoundError):
            if (await stream.get_last_message(subject)).data == message.data:
                return
        # Not by its id: whoever wrote it would take the new one for its own.
        block = headers.without_headers(with_effect(message.hdrs), headers.MSG_ID, "Nats-Expected-")
        await self._there.backend.publish(subject, message.data, block)
