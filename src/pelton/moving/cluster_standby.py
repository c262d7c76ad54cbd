"""Keeps a NATS cluster a standby of a store file, which can take its place (``cluster_promotion.py``).

**Each turn copies one snapshot of the store.** First the messages of all streams are published, then what the store has
no longer is removed, then the consumers' states are noted, and last the time of the snapshot. So a turn that is
interrupted anywhere leaves too much, and never too little: what was there at the noted time is there.

**A stream of the standby takes no messages but the follower's.** Its subject is ``$PELTON.standby.NAME.>``, which a
transform removes, so the messages have their own subjects and the programs' publishes find no stream. Each is
published on the condition that it comes right after the last one: two followers, repeated publishes, and one that was
under way when its follower was killed, cannot bring a sequence out of step. What is gone from the store keeps its place
as a small message until it is removed.

What would act by itself is kept inert, its ``Nats-`` headers under other names: schedules, below a subject of their
own, and everything in the buckets of locks and elections, whose streams are kept under another name, as they are made
anew with larger sequences when the standby is promoted.

**The note** is a bucket on the cluster: what the standby is, and for each stream its configuration and its consumers.
Each turn writes it on the condition that nobody else has.

**No stream is deleted by a follower that was stopped, and woken when the standby was the store.** A server has no
condition for that. But it republishes what it stores: so the follower stores an *order* in the bucket, on the condition
that nobody has written to it since it looked, and it is republished as the request to delete the stream. Whoever
promotes has written to the bucket first, and waits for the orders that were stored before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from operator import attrgetter
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from pelton.api import (
    ApiError,
    BucketKeyNotFoundError,
    BucketNotFoundError,
    ConfigError,
    MessageNotFoundError,
    MsgDelete,
    MsgGet,
    Outgoing,
    Republish,
    ServerPermissionError,
    ServerRefusedError,
    StoreBusyError,
    StoredMessage,
    StoreError,
    StoreSettingsError,
    StoreStandbyError,
    StreamInfo,
    StreamList,
    StreamNotFoundError,
    StreamState,
    WrongLastSequenceError,
    headers,
)
from pelton.api.keys import Key, key_bytes
from pelton.api.store_errors import FINAL_ERRORS
from pelton.api.times import dec_hook, enc_hook
from pelton.buckets import Bucket
from pelton.buckets.bucket import TOKENS_BUCKET
from pelton.connect import Jet, Opening
from pelton.connect import open as open_store
from pelton.engine.host import public_error
from pelton.engine.read_only_engine import ReadOnlyEngine
from pelton.jet import Stream
from pelton.jet.stream import AUDIT_STREAM, list_all, subjects_of
from pelton.moving.configs import (
    APART,
    FOLLOWERS,
    STANDBY,
    as_published,
    filler_of,
    is_schedule,
    kept_name,
    schedules_of,
    standby_config,
    without_effect,
)
from pelton.moving.continuing import KeptStream, kept_consumers
from pelton.moving.copying import ClusterFiller, pages
from pelton.moving.served_log import FollowedFile, followed_store, name_of, open_followed
from pelton.runtime import Deadline, on_thread, system_runtime
from pelton.storage import Database, Fault
from pelton.storage.standby import highest_token_floor, sum_of_last_seqs, uuid_of
from pelton.storage.store_file import PROMOTING

_log: Final = logging.getLogger("pelton.moving")
_BUCKET: Final = "pelton_standby"
_NOTES: Final = f"KV_{_BUCKET}"
_NOTE: Final = "note"
_STREAM: Final = "stream."
_ORDER: Final = "$PELTON.standby_delete."
_CREATED: Final = "Pelton-Created"
_ORDERED_S: Final = 5.0
_LOOK_S: Final = 0.01
_AT_ONCE: Final = 200
# A turn holds a snapshot of the store, whose log grows meanwhile.
_MOST_IN_A_TURN: Final = 20_000
_TOLD_NS: Final = 2_000_000_000


class ClusterNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a cluster is to a store: its standby, or the store that has replaced it.

    ``is_whole``: while it is promoted, that all was copied that can be.
    """

    state: Literal["standby", "promoting", "store"] = "standby"
    source: str
    uuid: str
    copied_ns: int = 0
    last_seqs: int = 0
    tokens: int = 0
    num_replicas: int = 1
    is_whole: bool = False


# --- what a standby is, on its cluster


class StandbyBucket:
    """The notes of a standby on a cluster. Writes raise StoreStandbyError if others have written meanwhile."""

    def __init__(self, jet: Jet, bucket: Bucket[bytes], name: str) -> None:
        self._jet = jet
        self._bucket = bucket
        self._name = name
        self._revision = 0
        self.note: ClusterNote | None = None

    async def read(self) -> ClusterNote | None:
        """Read what the standby is; None: nothing yet."""
        self.note, self._revision = None, 0
        with suppress(BucketKeyNotFoundError):
            entry = await self._bucket.get(_NOTE)
            self.note, self._revision = msgspec.json.decode(entry.value or b"", type=ClusterNote), entry.revision
        return self.note

    async def write(self, note: ClusterNote) -> None:
        """Replace what was read or written last."""
        try:
            self._revision = await self._bucket.update(_NOTE, msgspec.json.encode(note), self._revision)
        except WrongLastSequenceError:
            await self.check()
            raise StoreStandbyError(self._name, "another process follows with it: only one can") from None
        self.note = note

    async def check(self) -> None:
        """Raise StoreStandbyError if it was promoted since it was read."""
        mine, revision = self.note, self._revision
        if (found := await self.read()) is not None and mine is not None and found.state != mine.state:
            raise StoreStandbyError(self._name, "it was promoted, so nothing is copied to it any more")
        self.note, self._revision = mine, revision

    async def streams(self) -> dict[str, KeptStream]:
        """Return what is kept of each stream."""
        found = dict[str, KeptStream]()
        names = self._bucket.keys(_STREAM + "*")
        for key in [key async for key in names]:
            entry = await self._bucket.get(key)
            kept = msgspec.json.decode(entry.value or b"", type=KeptStream, dec_hook=dec_hook)
            found[kept.config.name] = kept
        return found

    async def keep(self, kept: KeptStream) -> None:
        """Note a stream."""
        await self._bucket.put(_key(kept.config.name), msgspec.json.encode(kept, enc_hook=enc_hook))

    async def forget(self, stream: str) -> None:
        """Remove what is noted of a stream."""
        await self._bucket.purge(_key(stream))

    # --- deleting streams, see above

    async def take_orders(self, *, are_taken: bool) -> None:
        """Let what is stored on the subjects of orders delete streams, or no longer."""
        stream = await self._jet.stream(_NOTES)
        if are_taken == (stream.config.republish is not None):
            return
        orders = Republish(src=_ORDER + "*", dest="$JS.API.STREAM.DELETE.{{wildcard(1)}}") if are_taken else None
        subjects = (stream.config.subjects[0], *((_ORDER + "*",) if are_taken else ()))
        await self._jet.update_stream(replace(stream.config, subjects=subjects, republish=orders))

    async def delete(self, stream: str) -> None:
        """Delete a stream, unless others have written since. Raises StoreStandbyError, StoreBusyError."""
        assert self.note is not None
        try:
            created = (await (await self._jet.stream(stream)).info()).created
        except StreamNotFoundError:
            return
        # Repeated, it might meet a stream that was made since.
        if created != await self._ordered(stream):
            await self.write(self.note)
            block = headers.with_value(None, headers.EXPECTED_LAST_SEQUENCE, str(self._revision))
            try:
                await self._jet.backend.publish(_ORDER + stream, b"", headers.with_value(block, _CREATED, created))
            except WrongLastSequenceError:
                await self.check()
                raise StoreBusyError(self._name, "another process has written to the notes of this standby") from None
        await self._until_gone(stream)

    async def _ordered(self, stream: str) -> str | None:
        """Return when the stream was created that was to be deleted last."""
        try:
            request = MsgGet(stream=_NOTES, last_by_subj=_ORDER + stream)
            found = (await self._jet.backend.call(request)).message
        except MessageNotFoundError:
            return None
        return headers.first(found.hdrs or b"", _CREATED)

    async def _until_gone(self, stream: str) -> None:
        deadline = Deadline(self._jet.runtime.clock, _ORDERED_S)
        while stream in await self._jet.stream_names():
            if deadline.is_over:
                raise StoreBusyError(
                    self._name, f"its servers have not deleted stream {stream!r} yet; if they do not, delete it there"
                )
            await self._jet.runtime.clock.sleep(_LOOK_S)

    async def settle_orders(self) -> None:
        """Return when the servers have carried out all orders. Raises StoreBusyError."""
        bucket = await self._jet.stream(_NOTES)
        for subject in await subjects_of(bucket, _ORDER + "*"):
            stream = subject.removeprefix(_ORDER)
            try:
                if (await (await self._jet.stream(stream)).info()).created != await self._ordered(stream):
                    continue
                await self._until_gone(stream)
            except StreamNotFoundError:
                pass
            # Whoever has ordered that may have been killed since.
            await self.forget(stream.removeprefix(APART))


def _key(stream: str) -> str:
    return _STREAM + stream.encode().hex()


async def standby_bucket(there: Jet, name: str, *, num_replicas: int | None = None) -> StandbyBucket:
    """Return the notes of the standby on a cluster; ``num_replicas``: make them if there are none.

    Raises ConfigError if there is no standby.
    """
    try:
        bucket = await there.bucket(_BUCKET)
    except BucketNotFoundError:
        if num_replicas is None:
            raise ConfigError(f"{name!r} is no standby: `pelton copy SOURCE {name} --follow` makes one") from None
        bucket = await there.create_bucket(_BUCKET, replicas=num_replicas, description="a standby, by pelton copy")
    return StandbyBucket(there, bucket, name)


# --- following


class _Appender(ClusterFiller):
    """Publishes to a stream of a standby; nothing is stored but in its place."""

    def __init__(self, jet: Jet, stream: Stream, kept: KeptStream, last: int) -> None:
        super().__init__(jet, stream, last)
        self._kept = kept
        self._name = kept.config.name
        self._prefix = f"{FOLLOWERS}{stream.name}."

    def _outgoing(self, message: StoredMessage | None, after: int) -> Outgoing:
        subject, data, block = filler_of(self._name), b"", None
        if message is not None:
            subject, data, block = message.subject, message.data, as_published(message)
            if is_schedule(message) and not self._kept.is_apart:
                subject, block = schedules_of(self._name) + subject, without_effect(message.hdrs)
            elif self._kept.is_apart:
                block = without_effect(block)
        block = headers.with_value(block, headers.EXPECTED_LAST_SEQUENCE, str(after))
        return Outgoing(self._prefix + subject, data, block)

    async def _publish(self, batch: Sequence[Outgoing]) -> None:
        await super()._publish(batch)
        await self._verify(batch)

    async def _verify(self, batch: Sequence[Outgoing]) -> None:
        """Compare what was just stored with what was sent. Raises ConfigError."""
        seq = first = self.last - len(batch) + 1
        deadline = Deadline(self._jet.runtime.clock, _PATIENCE_S)
        while seq <= self.last and not deadline.is_over:
            found = await self._stream.get_messages(self.last - seq + 1, seq=seq)
            for message in found:
                stored = Outgoing(self._prefix + message.subject, message.data, message.hdrs)
                if stored != batch[message.seq - first]:
                    raise ConfigError(
                        f"message {message.seq} of stream {self._stream.name!r} of the standby is not what was sent: "
                        "delete the stream there, and it is copied anew"
                    )
                seq = message.seq + 1
            if not found:
                # A replica may be behind.
                await self._jet.runtime.clock.sleep(_LOOK_S)
        if seq <= self.last and not self._kept.config.allow_msg_ttl:
            _log.warning("stream %s: no server shows the messages from %d to compare them", self._name, seq)


class ClusterWriter:
    """Brings the standby ``target`` on a cluster up to date with a store file, turn by turn; ``here`` only reads it."""

    def __init__(self, here: Jet, there: Jet, source: FollowedFile, target: str, num_replicas: int | None) -> None:
        engine = here.backend
        assert isinstance(engine, ReadOnlyEngine)
        self._engine = engine
        self._here, self._there = here, there
        self.source: FollowedFile = source
        self.target: str = target
        self._num_replicas = num_replicas
        self._bucket: StandbyBucket | None = None
        self._kept: dict[str, KeptStream] = {}
        self._states: dict[str, StreamState] = {}
        self._lasts: dict[str, int] = {}
        self._left_out: set[str] = set()
        self._told = 0
        self._seen: tuple[Database, int] | None = None
        self.uuid: str = ""

    async def begin(self, *, is_promoting: bool = False) -> StandbyBucket:
        """Read where the standby is; return its notes. Raises ConfigError, StoreStandbyError while it is promoted."""
        with self._engine.held() as database:
            self.uuid = uuid_of(database)
        bucket = await standby_bucket(self._there, self.target, num_replicas=self._num_replicas or 1)
        found = await bucket.read()
        if found is not None and found.state == "promoting" and not is_promoting:
            raise StoreStandbyError(self.target, PROMOTING.format(self.target))
        if found is not None and found.uuid != self.uuid:
            other = found.source
            raise ConfigError(f"{self.target}: it is a standby of another store than {self.source.name}, {other}")
        replicas = self._num_replicas or (1 if found is None else found.num_replicas)
        note = ClusterNote(source=self.source.name, uuid=self.uuid) if found is None else found
        if note.state != "store":
            await bucket.write(replace(note, source=self.source.name, num_replicas=replicas))
            await bucket.take_orders(are_taken=True)
        self._kept, self._bucket = await bucket.streams(), bucket
        return bucket

    async def turn(self) -> bool | None:
        """Copy what is new; return whether anything was, None if there was too much for one turn."""
        bucket = self._bucket
        assert bucket is not None
        assert bucket.note is not None
        copied = self._there.runtime.clock.now()
        await on_thread(lambda _: self.source.refresh())
        with self._engine.held() as database:
            seen = database, database.seen()
            is_new = False if seen == self._seen else await self._copy()
            if is_new is None:
                await bucket.check()
                return None
            last_seqs, tokens = sum_of_last_seqs(database), highest_token_floor(database)
        self._seen = seen
        if is_new or abs(copied - bucket.note.copied_ns) >= _TOLD_NS:
            note = replace(bucket.note, copied_ns=copied, last_seqs=last_seqs, tokens=tokens)
            await bucket.write(note)
            if abs(copied - self._told) >= _TOLD_NS:
                await on_thread(lambda _: self.source.note_copied(self.target, copied, last_seqs))
                self._told = copied
        return is_new

    async def _copy(self) -> bool | None:
        assert self._bucket is not None
        streams = [one async for one in self._streams()]
        is_new = await self._fill(streams)
        if is_new is None:
            return None
        for info, kept in streams:
            is_new |= await self._remove(info, kept)
            if self._kept.get(info.config.name) != kept:
                await self._bucket.keep(kept)
                self._kept[info.config.name], is_new = kept, True
        return await self._remove_others({info.config.name for info, _ in streams}) or is_new

    async def _streams(self) -> AsyncGenerator[tuple[StreamInfo, KeptStream], None]:
        """Yield the streams, and what is kept of each."""
        assert self._bucket is not None
        assert self._bucket.note is not None
        apart = set[str]()
        with suppress(BucketNotFoundError):
            names = (await self._here.bucket(TOKENS_BUCKET)).keys()
            apart = {name async for name in names}
        replicas = self._bucket.note.num_replicas
        for info in await list_all(self._here.backend, StreamList(), attrgetter("streams")):
            name = info.config.name
            if name in (AUDIT_STREAM, _NOTES) or self._is_left_out(info):
                continue
            consumers = await kept_consumers(self._here, name)
            is_apart = name in apart and name.startswith("KV_")
            config = replace(info.config, num_replicas=replicas)
            yield (
                info,
                KeptStream(
                    config=config,
                    created=info.created,
                    last_seq=info.state.last_seq,
                    is_apart=is_apart,
                    consumers=consumers,
                ),
            )

    def _is_left_out(self, info: StreamInfo) -> bool:
        name = info.config.name
        if info.config.allow_msg_counter and name not in self._left_out:
            self._left_out.add(name)
            _log.warning("stream %s is left out: a cluster would count its counters again", name)
        return info.config.allow_msg_counter

    # --- messages

    async def _fill(self, streams: Sequence[tuple[StreamInfo, KeptStream]]) -> bool | None:
        """Publish what is missing; return whether anything was, None if there is more."""
        left = _MOST_IN_A_TURN
        for info, kept in streams:
            copy, last = await self._copy_of(info, kept)
            appender = _Appender(self._there, copy, kept, last)
            upto = min(info.state.last_seq, last + left)
            original = await self._here.stream(info.config.name)
            try:
                async with aclosing(pages(original, last + 1, upto, is_near=True)) as found:
                    async for page in found:
                        await appender.fill(page)
                await appender.skip(upto)
            finally:
                self._lasts.pop(copy.name, None)
            self._lasts[copy.name] = appender.last
            left -= max(appender.last - last, 0)
            if upto < info.state.last_seq:
                return None
        return left < _MOST_IN_A_TURN

    async def _copy_of(self, info: StreamInfo, kept: KeptStream) -> tuple[Stream, int]:
        """Return the stream of the standby, and its last sequence."""
        name = kept_name(info.config.name, is_apart=kept.is_apart)
        before, config = (
            self._kept.get(info.config.name),
            standby_config(kept.config, info.state, is_apart=kept.is_apart),
        )
        if before is not None and (before.created, before.is_apart) != (kept.created, kept.is_apart):
            # It was deleted, and is another one now.
            await self._delete(info.config.name)
            before = None
        try:
            copy = await self._there.stream(name)
        except StreamNotFoundError:
            self._states.pop(info.config.name, None)
            copy = await self._there.create_stream(config)
        if copy.config.metadata.get(STANDBY) != "standby":
            await self._check()
            raise ConfigError(
                f"{self.target}: it has a stream {name!r} that is not of this standby: nothing is overwritten, so "
                "delete it there, or follow with another cluster or account"
            )
        if before is not None and before.config != kept.config:
            assert self._bucket is not None
            assert self._bucket.note is not None
            # Nobody has promoted it meanwhile.
            await self._bucket.write(self._bucket.note)
            await self._there.update_stream(replace(config, first_seq=copy.config.first_seq))
        if (last := self._lasts.get(name)) is None:
            last = (await copy.info()).state.last_seq
        return copy, last

    async def _check(self) -> None:
        if self._bucket is not None:
            await self._bucket.check()

    # --- what the store has no longer

    async def _remove(self, info: StreamInfo, kept: KeptStream) -> bool:
        """Remove what a stream has no longer; return whether anything was."""
        name, state = info.config.name, info.state
        if self._states.get(name) == state:
            return False
        copy = await self._there.stream(kept_name(name, is_apart=kept.is_apart))
        there = (await copy.info()).state
        if (there.messages, there.last_seq) != (state.messages, state.last_seq):
            await copy.purge(filter=filler_of(name))
            if state.first_seq > there.first_seq:
                await copy.purge(seq=state.first_seq)
            there = (await copy.info(deleted_details=True)).state
            if there.messages != state.messages:
                original = await self._here.stream(name)
                gone = {*(await original.info(deleted_details=True)).state.deleted} - {*there.deleted}
                await self._delete_messages(copy.name, sorted(seq for seq in gone if seq >= there.first_seq))
            there = (await copy.info()).state
        if there.last_seq > state.last_seq:
            # From a later snapshot: it sees in the note that it is not alone.
            raise StoreBusyError(self.target, "another process has copied to it meanwhile")
        if there.last_seq != state.last_seq or (there.messages != state.messages and not info.config.allow_msg_ttl):
            await self._check()
            raise ConfigError(
                f"{self.target}: stream {copy.name!r} has {there.messages} messages up to {there.last_seq}, and the "
                f"store {state.messages} up to {state.last_seq}: delete it there, and it is copied anew"
            )
        self._states[name] = state
        return True

    async def _delete_messages(self, stream: str, sequences: Sequence[int]) -> None:
        async def delete(seq: int) -> None:
            # It may have expired there, too.
            with suppress(ApiError):
                await self._there.backend.call(MsgDelete(stream=stream, seq=seq, no_erase=True))

        for first in range(0, len(sequences), _AT_ONCE):
            await asyncio.gather(*map(delete, sequences[first : first + _AT_ONCE]))

    async def _remove_others(self, names: set[str]) -> bool:
        gone = self._kept.keys() - names
        for name in gone:
            await self._delete(name)
        return bool(gone)

    async def _delete(self, name: str) -> None:
        """Delete a stream of the standby, which the store has no longer."""
        assert self._bucket is not None
        kept = self._kept[name]
        await self._bucket.delete(kept_name(name, is_apart=kept.is_apart))
        await self._bucket.forget(name)
        del self._kept[name]
        self._states.pop(name, None)
        self._lasts.pop(kept_name(name, is_apart=kept.is_apart), None)


# --- the loop

_BACKOFF_S: Final = 1.0
_SHORTEST_S: Final = 0.1
_PATIENCE_S: Final = 5.0
_FINAL: Final = (*FINAL_ERRORS, StoreSettingsError, ServerRefusedError, ServerPermissionError)


async def follow_on_cluster(
    source: str, target: str, *, key: Key | None, interval: float, num_replicas: int | None, told: Callable[[], object]
) -> None:
    """Keep a cluster a standby of ``source``, a whole path or an address; see :func:`pelton.moving.follow`."""
    problem, name, secret = "", name_of(target), key_bytes(key)
    while True:
        try:
            async with (
                open_followed(followed_store(source, secret, name)) as followed,
                open_store(followed.path, key=key, read_only=True) as here,
                open_target(target) as there,
            ):
                writer = ClusterWriter(here, there, followed, name, num_replicas)
                await refuse_promoted(writer)
                while True:
                    done = await writer.turn()
                    if done is not None:
                        problem = ""
                        await on_thread(lambda _: told())
                        await there.runtime.clock.sleep(max(interval, _SHORTEST_S))
        except (StoreError, ApiError) as error:
            if isinstance(error, _FINAL):
                raise
            if str(error) != problem:
                problem = str(error)
                _log.warning("standby %r cannot be kept up to date, and is tried again: %s", name, problem)
        await system_runtime().clock.sleep(_BACKOFF_S)


def open_target(address: str) -> Opening:
    """Open the cluster of a standby."""
    # Ids of their own would be headers that the originals do not have.
    return open_store(address, message_ids=False, patience=_PATIENCE_S)


async def refuse_promoted(writer: ClusterWriter) -> None:
    """Begin; if the standby was promoted, tell the store that it was replaced, and raise StoreStandbyError."""
    note = (await writer.begin()).note
    if note is None or note.state == "standby":
        return
    source, by = writer.source, writer.target
    try:
        await on_thread(lambda _: source.fence(by))
    except Fault as fault:
        raise public_error(fault) from None
    await on_thread(lambda _: source.end())
    raise StoreStandbyError(source.name, f"it was replaced by its standby {by}, and knows it now: write to that one")
