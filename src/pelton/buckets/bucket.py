"""Key-value buckets: created, opened, listed and removed, and the handle of one.

A bucket is a stream that keeps the last ``history`` messages of each subject; a key is a subject, a value a message,
its revision the message's sequence. To delete a key is to write a marker; to purge it, a marker that removes the older
revisions too. The stream checks every condition in the transaction of the write, so buckets need no locks: a write that
expects an outdated revision fails.

**Fencing tokens grow even if their stream was deleted.** Tokens of locks, elections and exclusive keys are sequences of
a stream. Such a stream begins at the microsecond of its creation, which is above all sequences of a deleted one of its
name, unless a clock was set back in between. So the bucket ``pelton_tokens`` remembers where the last stream of each
name began, and the next begins far above that, whatever the clock shows. The place is reserved before the stream is
created: of several processes that create one at once, one succeeds, and none begins where an earlier one did.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from copy import copy
from typing import Any, Final, Generic, Protocol, TypeVar, Unpack

import msgspec

from pelton.api import (
    ApiError,
    Backend,
    BucketKeyExistsError,
    BucketKeyNotFoundError,
    BucketNotFoundError,
    ConfigError,
    Delivered,
    LastHeaders,
    MessageNotFoundError,
    MessageTooLargeError,
    NoStreamForSubjectError,
    PubAck,
    ServerUnreachableError,
    StoredMessage,
    StreamFill,
    StreamLastHeaders,
    StreamNotFoundError,
    StreamPurge,
    WrongLastSequenceError,
)
from pelton.api.arguments import check_instance, check_whole
from pelton.api.build import seconds_to_ns
from pelton.api.times import Seconds, parse_rfc3339
from pelton.buckets.bucket_settings import (
    STREAM_PREFIX,
    BucketSettings,
    as_others_limit,
    changed_config,
    metadata_of,
    new_config,
    stream_of,
    value_limit,
)
from pelton.buckets.coding import OPERATION_HEADER, BucketStatus, Codec, Coding, Entry, operation_of
from pelton.jet import Stream, Streams
from pelton.jet.message import PublishOptions
from pelton.jet.message_source import OrderedReader
from pelton.jet.stream import at_leader, next_of
from pelton.runtime import at_home

T = TypeVar("T")
# What a store that is only read can answer.
_POLICIES: Final = ("all", "last_per_subject")


async def follow(
    jet: Streams, stream: str, filters: Sequence[str], **fields: Any
) -> AsyncGenerator[Delivered | None, None]:
    """Yield messages in order, and None once after all that existed at the start.

    Of a store that is only read, nothing can be followed: after that None, it raises StoreReadOnlyError.
    """
    if jet.backend.planning.read_only and fields.get("deliver_policy") in _POLICIES:
        async for stored in _looked_up(jet, stream, filters, fields["deliver_policy"]):
            yield stored
        yield None
    fields |= {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": filters}
    async with aclosing(OrderedReader(jet.backend, jet.runtime, stream, **fields).follow()) as deliveries:
        async for one in deliveries:
            yield one


async def _looked_up(jet: Streams, stream: str, filters: Sequence[str], policy: str) -> AsyncGenerator[Delivered, None]:
    """Yield all messages of some filters, or the last ones of the subjects, without a consumer."""
    handle = await jet.stream(stream)
    if policy == "all":
        sequences = [one.seq for text in filters async for one in _all_of(handle, text)]
    else:
        sequences = [head.seq async for page in heads(jet, stream, filters) for head in page]
    ordered = sorted(sequences)
    for number, seq in enumerate(ordered, 1):
        with suppress(MessageNotFoundError):
            one = await handle.get_message(seq)
            left = len(ordered) - number
            yield Delivered(one.subject, seq, one.time_ns, one.hdrs or None, one.data, number, 1, left, stream, "")


async def _all_of(handle: Stream, subject: str) -> AsyncGenerator[StoredMessage, None]:
    seq = 1
    while (one := await next_of(handle, subject, seq)) is not None:
        yield one
        seq = one.seq + 1


async def present(jet: Streams, stream: str, filters: Sequence[str], **fields: Any) -> AsyncGenerator[Delivered, None]:
    """Yield the current messages: the last ones of the subjects, unless ``fields`` say otherwise."""
    async with aclosing(follow(jet, stream, filters, **{"deliver_policy": "last_per_subject", **fields})) as following:
        async for one in following:
            if one is None:
                return
            yield one


async def heads(jet: Streams, stream: str, filters: Sequence[str]) -> AsyncGenerator[Sequence[LastHeaders], None]:
    """Yield the last messages of the subjects, without payloads, many at a time.

    A subject that exists during the whole iteration comes once.
    """
    if StreamLastHeaders not in jet.backend.planning.own_verbs:
        async with aclosing(present(jet, stream, filters, headers_only=True)) as last_ones:
            async for one in last_ones:
                yield (LastHeaders(one.subject, one.seq, one.headers),)
        return
    request = StreamLastHeaders(stream=stream, filters=tuple(filters))
    while page := (await jet.backend.call(request)).heads:
        yield page
        request = msgspec.structs.replace(request, after=page[-1].subject)
        # Nothing above waits for I/O: without this, others would have to wait for the last page.
        await asyncio.sleep(0)


_HALF_AN_HOUR_S: Final = 1800.0


class Publish(Protocol):
    """Stores a message: `publish` of a `Jet` or of a transaction."""

    async def __call__(self, subject: str, data: bytes = b"", **options: Unpack[PublishOptions]) -> PubAck:
        """Store a message: see `Jet.publish`."""


Origins = Callable[[str], Awaitable[Streams]]
"""Opens the JetStream whose API has a prefix, which is that of a bucket's origin. Raises ConfigError, StoreError."""


class Bucket(Generic[T]):
    """A bucket of keys whose values are bytes, or of the ``type`` it was opened with (as JSON)."""

    def __init__(
        self,
        jet: Streams,
        stream: Stream,
        name: str,
        kind: type[T] | None,
        codec: Codec | None,
        origins: Origins | None = None,
    ) -> None:
        self.name = name
        self._jet = jet
        self._check_loop = jet.backend.check_loop
        self._stream = stream
        self._coding = Coding(name, stream.config, kind, codec, jet.backend.domain_prefix)
        # Writes may go another way than through the jet: through a transaction, or to the origin of a mirror.
        self._publish: Publish | None = None
        self._far: Origins | None = None
        if origins is not None and (mirror := stream.config.mirror) is not None and mirror.external is not None:
            self._far, self._publish = origins, self._publish_far

    async def _publish_far(self, subject: str, data: bytes = b"", **options: Unpack[PublishOptions]) -> PubAck:
        origin = await self._origin()
        try:
            return await origin.publish(subject, data, **options)
        except NoStreamForSubjectError:
            reason = f"nobody takes {subject!r}: the hub is away, or has no such bucket"
            raise ServerUnreachableError(origin.backend.domain_prefix[:-1], reason) from None

    async def _origin(self) -> Streams:
        """Return where the bucket is written."""
        mirror = self._stream.config.mirror
        if self._far is None or mirror is None or mirror.external is None:
            return self._jet
        return await self._far(mirror.external.api)

    # --- reading

    async def get(self, key: str, *, revision: int = 0) -> Entry[T]:
        """Return the current entry of a key, or the entry at a revision.

        Raises BucketKeyNotFoundError for a key that was never written, or is deleted; ConfigError.
        """
        entry = await self._read(key, revision)
        if entry is None or entry.operation != "put":
            raise BucketKeyNotFoundError(self.name, key, revision)
        return entry

    async def _read(self, key: str, revision: int) -> Entry[T] | None:
        subject = self._coding.subject(key)
        if type(revision) is not int:
            check_whole(self._about(key), "revision", revision)
        try:
            if not revision:
                return self._coding.entry_of(await self._stream.get_last_message(subject), key)
            stored = await self._stream.get_message(revision)
        except MessageNotFoundError:
            return None
        return self._coding.entry_of(stored, key) if stored.subject == subject else None

    # --- writing

    async def put(self, key: str, value: T, *, ttl: Seconds | None = None) -> int:
        """Write a key unconditionally, and return the revision.

        It expires after ``ttl`` (whole seconds; the bucket must have ``limit_marker_ttl``, else ApiError 10166). Raises
        ConfigError, LimitError.
        """
        target, data = self._coding.target(key), await self._data(key, value)
        if ttl is None and self._publish is None:
            return (await self._jet.backend.publish(target, data)).seq
        return await self._write(key, target, data, None, ttl)

    async def create(self, key: str, value: T, *, ttl: Seconds | None = None) -> int:
        """Write a key that does not exist, or is deleted, and return the revision.

        For ``ttl``, in seconds, see :meth:`put`. Raises BucketKeyExistsError.
        """
        target, data = self._coding.target(key), await self._data(key, value)
        revision, seen = 0, -1
        while True:
            try:
                return await self._write(key, target, data, revision, ttl)
            except WrongLastSequenceError:
                revision = await self._deleted_at(key)
                if revision == seen:
                    # A replica's reads lag behind the leader, which decides.
                    raise
                seen = revision

    async def _deleted_at(self, key: str) -> int:
        """Return the revision of the marker that deleted a key, 0 if it is gone.

        Raises BucketKeyExistsError if the key exists.
        """
        origin = await self._origin()
        last = await at_leader(origin.backend, self._home, last_by_subj=self._coding.subject(key))
        if last is None:
            return 0
        if operation_of(last.hdrs) == "put":
            raise BucketKeyExistsError(self.name, key)
        return last.seq

    @property
    def _home(self) -> str:
        """The stream that a mirror's keys are written to, if it can be reached; otherwise the bucket's own."""
        mirror = self._stream.config.mirror
        is_here = mirror is None or (mirror.external is not None and self._far is None)
        return self._stream.name if mirror is None or is_here else mirror.name

    async def update(self, key: str, value: T, revision: int, *, ttl: Seconds | None = None) -> int:
        """Write a key if ``revision`` is still its last, and return the new one.

        Revision 0: if it was never written. For ``ttl``, in seconds, see :meth:`put`. Raises WrongLastSequenceError,
        whose ``seq`` is the last.
        """
        check_whole(self._about(key), "revision", revision)
        return await self._write(key, self._coding.target(key), await self._data(key, value), revision, ttl)

    async def _write(self, key: str, target: str, data: bytes, revision: int | None, ttl: Seconds | None) -> int:
        self._check_ttl(key, ttl)
        publish = self._publish or self._jet.publish
        return (await publish(target, data, expected_last_subject_seq=revision, ttl=ttl)).seq

    async def _data(self, key: str, value: T) -> bytes:
        try:
            return self._coding.data(key, value)
        except MessageTooLargeError:
            # The limit may have been raised since the bucket was opened.
            self._coding.configure((await self._stream.info()).config)
            return self._coding.data(key, value)

    def _check_ttl(self, key: str, ttl: Seconds | None) -> None:
        if ttl is not None:
            seconds_to_ns("ttl", ttl, self._about(key))

    def _about(self, key: str) -> str:
        return f"bucket {self.name!r}, key {key!r}"

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Delete a key; with ``revision`` only if that is still its last. Older revisions stay.

        Raises WrongLastSequenceError.
        """
        await self._mark(key, {OPERATION_HEADER: "DEL"}, revision, None)

    async def purge(self, key: str, *, revision: int | None = None, ttl: Seconds | None = None) -> None:
        """Delete a key and its older revisions; the marker of the purge expires after ``ttl`` seconds.

        For ``ttl`` and ``revision`` see :meth:`put` and :meth:`delete`. Raises WrongLastSequenceError.
        """
        await self._mark(key, {OPERATION_HEADER: "PURGE", "Nats-Rollup": "sub"}, revision, ttl)

    async def _mark(self, key: str, marks: dict[str, str], revision: int | None, ttl: Seconds | None) -> None:
        target = self._coding.target(key)
        if revision is not None:
            check_whole(self._about(key), "revision", revision)
        self._check_ttl(key, ttl)
        publish = self._publish or self._jet.publish
        await publish(target, headers=marks, expected_last_subject_seq=revision, ttl=ttl)

    # --- many keys

    @at_home
    async def watch(
        self,
        *keys: str,
        include_history: bool = False,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        resume_from_revision: int = 0,
    ) -> AsyncGenerator[Entry[T] | None, None]:
        """Watch keys for ever: yields their current entries, then None, then every change as it happens.

        ``keys`` are keys or filters (``*``, ``>``), none for all. ``include_history`` starts with all stored revisions,
        ``updates_only`` with changes only, ``resume_from_revision`` with that one. ``ignore_deletes`` omits entries of
        deleted keys, ``meta_only`` omits values. Raises ConfigError.
        """
        about = f"bucket {self.name!r}"
        check_whole(about, "resume_from_revision", resume_from_revision)
        if sum(map(bool, (include_history, updates_only, resume_from_revision))) > 1:
            raise ConfigError(f"{about}: include_history, updates_only and resume_from_revision: give at most one")
        policy = "all" if include_history else "new" if updates_only else "last_per_subject"
        fields: dict[str, Any] = {"deliver_policy": policy}
        if resume_from_revision:
            fields = {"deliver_policy": "by_start_sequence", "opt_start_seq": resume_from_revision}
        coding, fields["headers_only"] = self._coding, bool(meta_only)
        async with aclosing(follow(self._jet, self._stream.name, coding.filters(keys), **fields)) as following:
            async for one in following:
                if one is None:
                    yield None
                    continue
                data = None if meta_only else one.data
                entry = coding.entry(one.subject, one.seq, one.time_ns, one.headers, data)
                if entry.operation == "put" or not ignore_deletes:
                    yield msgspec.structs.replace(entry, delta=one.num_pending) if one.num_pending else entry

    @at_home
    async def keys(self, *filters: str) -> AsyncGenerator[str, None]:
        """Iterate over the existing keys, all or those that match filters, in any order.

        A key that exists during the whole iteration comes once. Raises ConfigError, BucketDecodeError.
        """
        coding = self._coding
        async with aclosing(heads(self._jet, self._stream.name, coding.filters(filters))) as pages:
            async for page in pages:
                for head in page:
                    if head.hdrs is None or operation_of(head.hdrs) == "put":
                        yield coding.key(head.subject, head.seq)

    async def history(self, key: str) -> list[Entry[T]]:
        """Return the stored revisions of a key, the oldest first. Raises BucketKeyNotFoundError."""
        entries: list[Entry[T]] = []
        async with aclosing(
            present(self._jet, self._stream.name, [self._coding.subject(key)], deliver_policy="all")
        ) as revisions:
            async for one in revisions:
                entries.append(self._coding.entry(one.subject, one.seq, one.time_ns, one.headers, one.data))
        if not entries:
            raise BucketKeyNotFoundError(self.name, key, 0)
        return entries

    async def purge_deletes(self, *, older_than: Seconds = _HALF_AN_HOUR_S) -> None:
        """Remove the remains of deleted keys: older revisions, and markers older than ``older_than`` seconds.

        Younger markers stay, so that watchers still learn of them. A key that is created during the call is left alone.
        """
        age = seconds_to_ns("older_than", older_than, f"bucket {self.name!r}")
        # By the server's clock, which also dates the markers.
        now = (await self._stream.info()).ts
        limit = (parse_rfc3339(now) if now else self._jet.runtime.clock.now()) - age
        async with aclosing(
            present(self._jet, self._stream.name, self._coding.filters(()), headers_only=True)
        ) as last_ones:
            marks = [one async for one in last_ones if operation_of(one.headers) != "put"]
        for mark in marks:
            below = mark.seq if mark.time_ns > limit else mark.seq + 1
            await (await self._origin()).backend.call(StreamPurge(name=self._home, filter=mark.subject, seq=below))

    async def status(self) -> BucketStatus:
        """Return settings and size."""
        info = await self._stream.info()
        config = info.config
        return BucketStatus(
            bucket=self.name,
            values=info.state.messages,
            bytes=info.state.bytes,
            history=max(config.max_msgs_per_subject, 1),
            ttl=config.max_age.seconds,
            limit_marker_ttl=config.subject_delete_marker_ttl.seconds,
            is_compressed=config.compression != "none",
            storage=config.storage,
            replicas=config.num_replicas,
            max_value_size=value_limit(config),
            max_bytes=config.max_bytes,
            description=config.description,
            metadata=metadata_of(config),
            mirror=config.mirror.name.removeprefix(STREAM_PREFIX) if config.mirror is not None else "",
            sources=tuple(source.name.removeprefix(STREAM_PREFIX) for source in config.sources),
        )


def written_through(bucket: Bucket[T], backend: Backend, publish: Publish) -> Bucket[T]:
    """Return the same bucket, writing through ``publish`` instead. Raises ConfigError."""
    check_instance("transaction", "the bucket", bucket, Bucket, "give a bucket that jet.bucket() has opened")
    if bucket._jet.backend is not backend:
        raise ConfigError(f"bucket {bucket.name!r} was opened through another handle: open it through this one")
    if bucket._far is not None:
        raise ConfigError(f"bucket {bucket.name!r} mirrors one of another JetStream, which no transaction includes")
    other = copy(bucket)
    other._publish = publish
    return other


# --- creates, opens, updates, lists and removes buckets

_EXISTS: Final = 10058


async def open_bucket(
    jet: Streams, name: str, kind: type[T] | None, codec: Codec | None, origins: Origins | None = None
) -> Bucket[T]:
    """Return an existing bucket. Raises BucketNotFoundError, ConfigError."""
    return Bucket(jet, await _stream(jet, name), name, kind, codec, origins)


async def create_bucket(
    jet: Streams,
    name: str,
    kind: type[T] | None,
    codec: Codec | None = None,
    origins: Origins | None = None,
    **settings: Unpack[BucketSettings],
) -> Bucket[T]:
    """Create a bucket, or return the existing one if its settings are the same. Raises ConfigError, ApiError."""
    config = new_config(name, settings)
    try:
        stream = await jet.create_stream(config)
    except ApiError as error:
        others = as_others_limit(config)
        if error.err_code != _EXISTS or others == config:
            raise
        stream = await jet.create_stream(others)
    return Bucket(jet, stream, name, kind, codec, origins)


async def make_token_bucket(jet: Streams, name: str, **settings: Unpack[BucketSettings]) -> None:
    """Create a bucket whose revisions are fencing tokens, unless another process was faster, with other settings."""
    config = new_config(name, settings)
    first = await reserve_first_token(jet, config.name)
    try:
        await jet.create_stream(msgspec.structs.replace(config, first_seq=first))
    except ApiError as error:
        if error.err_code != _EXISTS:
            raise


async def update_bucket(
    jet: Streams, name: str, origins: Origins | None = None, **settings: Unpack[BucketSettings]
) -> Bucket[bytes]:
    """Change settings of a bucket; the others stay. Raises BucketNotFoundError, ConfigError, ApiError."""
    base = (await _stream(jet, name)).config
    return Bucket(jet, await jet.update_stream(changed_config(base, name, settings)), name, None, None, origins)


async def _stream(jet: Streams, name: str) -> Stream:
    try:
        return await jet.stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name) from None


async def delete_bucket(jet: Streams, name: str) -> None:
    """Remove a bucket with all its keys. Raises BucketNotFoundError."""
    try:
        await jet.delete_stream(stream_of(name))
    except StreamNotFoundError:
        raise BucketNotFoundError(name) from None


async def bucket_names(jet: Streams) -> list[str]:
    return [name.removeprefix(STREAM_PREFIX) for name in await jet.stream_names() if name.startswith(STREAM_PREFIX)]


TOKENS_BUCKET: Final = "pelton_tokens"
# More messages than a stream stores in its life: a hundred thousand a second for four months.
_APART: Final = 10**12
# Another process has reserved a place in the meantime, or removed the bucket.
_TRY_AGAIN: Final = (BucketKeyExistsError, WrongLastSequenceError, StreamNotFoundError, NoStreamForSubjectError)


async def reserve_first_token(jet: Streams, stream: str, replicas: int = 1) -> int:
    """Return the first sequence of a stream that is about to be created: above all tokens of earlier ones.

    ``replicas`` is how many servers of a cluster keep the stream; at least as many remember this.
    """
    while True:
        try:
            return await _reservation(await _bucket(jet, replicas), stream, jet.runtime.clock.now() // 1_000)
        except _TRY_AGAIN:
            continue
        except ApiError as error:
            if error.err_code != _EXISTS:
                raise


# More than a hundred buckets of one name that follow each other.
_FAR: Final = 100 * _APART


async def raise_tokens(jet: Streams) -> None:
    """Let all streams of a store whose sequences are fencing tokens go on far above those they have given.

    For a store that goes on from an earlier moment: what it has given since is not known to it.
    """
    try:
        bucket = await open_bucket(jet, TOKENS_BUCKET, int, None)
    except BucketNotFoundError:
        return
    names = bucket.keys()
    for name in [name async for name in names]:
        last = await bucket.get(name)
        await bucket.update(name, (last.value or 0) + _FAR, last.revision)
        with suppress(StreamNotFoundError):
            state = (await (await jet.stream(name)).info()).state
            await jet.backend.call(StreamFill(stream=name, last_seq=state.last_seq + _FAR))


async def raise_first_tokens(jet: Streams, above: int, names: Sequence[str], replicas: int) -> None:
    """The same for streams of these names that are not there yet: they begin far above ``above``, too."""
    bucket = await _bucket(jet, replicas)
    known = bucket.keys()
    for name in {*names, *[name async for name in known]}:
        try:
            last = await bucket.get(name)
        except BucketKeyNotFoundError:
            await bucket.create(name, above + _FAR)
        else:
            await bucket.update(name, max(last.value or 0, above) + _FAR, last.revision)


async def _bucket(jet: Streams, replicas: int) -> Bucket[int]:
    try:
        bucket = await open_bucket(jet, TOKENS_BUCKET, int, None)
    except BucketNotFoundError:
        description = "where streams begin whose sequences are fencing tokens"
        return await create_bucket(jet, TOKENS_BUCKET, int, replicas=replicas, description=description)
    if replicas > 1 and (await bucket.status()).replicas < replicas:
        await update_bucket(jet, TOKENS_BUCKET, replicas=replicas)
    return bucket


async def _reservation(bucket: Bucket[int], stream: str, now: int) -> int:
    try:
        last = await bucket.get(stream)
    except BucketKeyNotFoundError:
        await bucket.create(stream, now)
        return now
    first = max(now, (last.value or 0) + _APART)
    await bucket.update(stream, first, last.revision)
    return first
