"""The configuration of a stream and the headers of its messages while it is copied and when it is complete, and what a
copy reports. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from pelton.api import Duration, StoredMessage, StreamConfig, StreamState, SubjectTransform, headers
from pelton.api.times import SECOND
from pelton.queue.setup import EXCLUSIVE, KEYS, RECORDS
from pelton.streams.publish_checks import seconds_of

MARK: Final = "pelton.copy"
"""The metadata of a stream that is being copied."""

_SHORTEST_WINDOW: Final = Duration.of_ns(100_000_000)


def filler_of(stream: str) -> str:
    """Return the subject of the messages that stand for deleted ones while a stream is copied to a cluster."""
    return f"$PELTON.copy.{stream}"


def is_exclusive_on_file(config: StreamConfig) -> bool:
    """Whether it holds the jobs of an exclusive queue whose keys are kept by consumers, as only files do."""
    return config.metadata.get(EXCLUSIVE) == "true" and config.metadata.get(KEYS) != RECORDS


def final(config: StreamConfig, *, to_cluster: bool) -> StreamConfig:
    """Return the configuration of the complete copy."""
    metadata = {name: value for name, value in config.metadata.items() if not name.startswith("_nats.")}
    config = replace(config, mirror=None, sources=(), metadata=metadata, mirror_direct=False, sealed=False)
    if to_cluster and is_exclusive_on_file(config):
        # On a cluster, the keys of such a queue are records, and workers remove the jobs themselves.
        return replace(config, retention="limits", allow_direct=True, metadata=metadata | {KEYS: RECORDS})
    if to_cluster and EXCLUSIVE in config.metadata and KEYS not in config.metadata:
        # As a queue that is made there: its jobs are looked for where they were stored, not on a replica.
        return replace(config, allow_direct=False)
    return config


def config_while_filling(config: StreamConfig, state: StreamState, *, to_cluster: bool) -> StreamConfig:
    """Return the configuration of a copy that is being filled: without limits, and nothing happens by itself."""
    target = final(config, to_cluster=to_cluster)
    filler = (filler_of(config.name),) if to_cluster else ()
    return replace(
        target,
        subjects=target.subjects + filler,
        max_msgs=-1,
        max_bytes=-1,
        max_age=Duration(0),
        max_msgs_per_subject=-1,
        max_msg_size=-1,
        discard="old",
        discard_new_per_subject=False,
        no_ack=False,
        duplicate_window=_SHORTEST_WINDOW if to_cluster else target.duplicate_window,
        first_seq=(state.first_seq if state.messages else state.last_seq + 1) if to_cluster else target.first_seq,
        subject_transform=None,
        republish=None,
        deny_delete=False,
        deny_purge=False,
        subject_delete_marker_ttl=Duration(0),
        allow_msg_schedules=False,
        allow_msg_counter=False,
        allow_direct=True,
        metadata=target.metadata | {MARK: "unfinished"},
    )


STANDBY: Final = "pelton.standby"
"""The metadata of a stream that belongs to a standby on a cluster."""
APART: Final = "STANDBY_"
FOLLOWERS: Final = "$PELTON.standby."
"""The prefix of the subjects on which the streams of a standby take messages, before the stream's name."""


def kept_name(stream: str, *, is_apart: bool) -> str:
    """Return the name of the stream of a standby that holds what a stream holds."""
    return f"{APART}{stream}" if is_apart else stream


def standby_config(config: StreamConfig, state: StreamState, *, is_apart: bool) -> StreamConfig:
    """Return the configuration of the stream of a standby: without limits, and nothing happens by itself."""
    config = config_while_filling(config, state, to_cluster=True)
    name = kept_name(config.name, is_apart=is_apart)
    subject = f"{FOLLOWERS}{name}.>"
    metadata = {key: value for key, value in config.metadata.items() if key != MARK}
    return replace(
        config,
        name=name,
        subjects=(subject,),
        subject_transform=SubjectTransform(src=subject, dest=">"),
        retention="limits" if config.retention == "interest" else config.retention,
        allow_msg_ttl=config.allow_msg_ttl and not is_apart,
        metadata=metadata | {STANDBY: "standby"},
    )


def completed_config(config: StreamConfig, unfinished: StreamConfig, *, to_cluster: bool, marked: bool) -> StreamConfig:
    """Return what an unfinished copy is changed to; ``marked``: it still has something to be done."""
    target = final(config, to_cluster=to_cluster)
    if marked:
        # It is still compared, which takes a request for each message otherwise.
        target = replace(target, allow_direct=True, metadata=target.metadata | {MARK: "unfinished"})
    return replace(target, first_seq=unfinished.first_seq)


def losses(config: StreamConfig, *, to_cluster: bool) -> Iterator[str]:
    """Yield what a copy of a stream cannot keep."""
    name = config.name
    if config.mirror is not None:
        yield f"stream {name}: it is no mirror of {config.mirror.name} any more"
    if config.sources:
        yield f"stream {name}: its sources ({', '.join(one.name for one in config.sources)}) were left out"
    if config.sealed:
        yield f"stream {name}: it is not sealed"
    if to_cluster and is_exclusive_on_file(config):
        yield f"stream {name}: the queue's keys are kept in records, as on a cluster; attempts begin at 1 again"


# --- the headers of a stored message, when it is published again

# What held when it was published, and what only the server may say that stores it: where it comes from.
_DROPPED: Final = ("Nats-Expected-", headers.STREAM_SOURCE, headers.SCHEDULER, headers.SCHEDULE_NEXT)
_OURS: Final = b"\nNats-"
_EMPTY: Final = b"NATS/1.0\r\n\r\n"


def is_schedule(message: StoredMessage) -> bool:
    return bool(message.hdrs) and headers.first(message.hdrs, headers.SCHEDULE) is not None


def as_published(message: StoredMessage) -> bytes | None:
    """Return the header block to publish a message with again: without conditions that held when it was published."""
    if _OURS not in message.hdrs:
        return message.hdrs or None
    block = headers.without_headers(message.hdrs, *_DROPPED)
    return None if block == _EMPTY else block


def schedules_of(stream: str) -> str:
    """Return the prefix of the subjects below which schedules wait."""
    return f"$PELTON.schedules.{stream}."


_NATS: Final = b"\r\nNats-"
_INERT: Final = b"\r\nPelton-Kept-Nats-"


def without_effect(block: bytes | None) -> bytes | None:
    """Return headers of which a server makes nothing."""
    return block and block.replace(_NATS, _INERT)


def with_effect(block: bytes) -> bytes | None:
    """Return the headers that were there before."""
    return headers.without_headers(block, headers.EXPECTED_LAST_SEQUENCE).replace(_INERT, _NATS) or None


def has_expired(message: StoredMessage, config: StreamConfig, now: int) -> bool:
    """Whether a message of a stream has expired at the time ``now`` (ns): by its own time to live, or by its age."""
    ttl = headers.first(message.hdrs, headers.TTL) if message.hdrs and config.allow_msg_ttl else None
    if ttl is None:
        return 0 < config.max_age.ns <= now - message.time_ns
    seconds = seconds_of(ttl)
    return seconds is not None and seconds * SECOND <= now - message.time_ns


# --- what a copy tells about itself


class StreamCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that was copied and compared: its ``messages``, its last sequence, and a ``checksum`` over all of it.

    ``was_there``: an earlier run had copied it. ``consumers`` are those whose state was copied.
    """

    name: str
    """The stream's name."""
    messages: int
    """How many messages the copy has."""
    last_seq: int
    """The last sequence of the copy."""
    checksum: str
    """A checksum over its sequences, subjects, headers and payloads: the same for the original.
    """
    consumers: tuple[str, ...] = ()
    """The consumers whose state was copied."""
    was_there: bool = False
    """Whether an earlier run had copied it."""


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The streams that were copied, and ``lost``: what the target cannot keep, a sentence each."""

    streams: tuple[StreamCopy, ...]
    """The streams that were copied and compared, by name."""
    lost: tuple[str, ...] = ()
    """What the target cannot keep, a sentence each."""
