"""What a queue is made of: its four streams and its consumers, made where they are missing.

The stream of the jobs carries, as metadata, what all users of the queue have to agree on. Any number of
processes may open a queue for the first time at once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pelton.api import ApiError, ConfigError, StreamNotFoundError
from pelton.queue.naming import QueueNames

if TYPE_CHECKING:
    from pelton.jet import Consumer, Stream, Streams

EXCLUSIVE: Final = "pelton.queue.exclusive"
LEASE: Final = "pelton.queue.lease"
KEYS: Final = "pelton.queue.keys"
RECORDS: Final = "records"
_DEFAULT_LEASE_S: Final = 30.0
_ATTEMPTS_AGE: Final = timedelta(days=30)
_WRITES_AGE: Final = timedelta(seconds=60)


async def jobs_stream(
    jet: Streams, names: QueueNames, exclusive: bool | None, lease: float | None, replicas: int
) -> Stream:
    """Return the stream of the jobs, which also remembers what all users of the queue have to agree on."""
    try:
        stream = await jet.stream(names.jobs)
    except StreamNotFoundError:
        fixed = _DEFAULT_LEASE_S if lease is None else lease
        stream = await _make_jobs_stream(jet, names, bool(exclusive), fixed, replicas)
    found = stream.config.metadata
    if EXCLUSIVE not in found or LEASE not in found:
        raise ConfigError(f"stream {names.jobs!r} is no queue: give the queue another name")
    _agree(names.queue, "exclusive", exclusive, found[EXCLUSIVE] == "true")
    _agree(names.queue, "lease", lease, float(found[LEASE]))
    return stream


async def _make_jobs_stream(jet: Streams, names: QueueNames, exclusive: bool, lease: float, replicas: int) -> Stream:
    metadata = {EXCLUSIVE: "true" if exclusive else "false", LEASE: repr(lease)}
    subjects = [names.keyed_subjects, names.free_subject]
    config: dict[str, Any] = {"subjects": subjects, "metadata": metadata, "num_replicas": replicas}
    if exclusive and not jet.backend.has_exclusive_subjects:
        # Of a work queue only acks remove messages, and nobody may watch it.
        config |= {"retention": "limits", "allow_direct": True, "metadata": metadata | {KEYS: RECORDS}}
    else:
        config["retention"] = "workqueue"
    if await jet.stream_names(f"{names.root}.>"):
        # Its jobs were deleted, and what is told of them was not: none of those that follow is to have their ids.
        config["first_seq"] = _never_used(jet)
    return await _create(jet, names.jobs, **config)


async def _create(jet: Streams, name: str, **config: Any) -> Stream:
    try:
        return await jet.create_stream(name, **config)
    except ApiError as error:
        if error.constant != "JSStreamNameExistErr":
            raise
        # Somebody else has made it since we looked, with other options, or to begin with another sequence.
        return await jet.stream(name)


def _never_used(jet: Streams) -> int:
    """Return a sequence that no stream of this name had before, unless it held a million messages a second."""
    return jet.runtime.clock.now() // 1_000


def _agree(queue: str, option: str, asked: float | None, found: float) -> None:
    if asked is not None and asked != found:
        raise ConfigError(f"queue {queue!r} was made with {option}={found}; open it with that, or leave it out")


async def side_streams(jet: Streams, names: QueueNames, history_max_age: float, replicas: int) -> None:
    """Make the streams beside the jobs: history, dead letters, attempts. ``history_max_age`` in seconds."""
    root, last = names.root, {"max_msgs_per_subject": 1}
    common = {"num_replicas": replicas}
    await _ensure(jet, names.history, subjects=[f"{root}.history.>"], max_age=history_max_age, **common)
    await _ensure(jet, names.dead, subjects=[f"{root}.dead.>"], **common)
    await _ensure(jet, names.attempts, subjects=[f"{root}.attempts.>"], max_age=_ATTEMPTS_AGE, **last, **common)


async def keys_stream(jet: Streams, names: QueueNames, replicas: int) -> None:
    """Make the stream of the keys' records, for exclusive queues on a cluster."""
    # A record is written under a condition, so an id need not be known for longer than a write is repeated.
    config: dict[str, Any] = {"max_msgs_per_subject": 1, "allow_msg_ttl": True, "duplicate_window": _WRITES_AGE}
    # Sequences are tokens: whoever held a key of a queue that was deleted holds none of another one of its name.
    config["first_seq"] = _never_used(jet)
    await _ensure(jet, names.keys, subjects=[names.hold_subject(">")], num_replicas=replicas, **config)


async def free_consumer(stream: Stream, names: QueueNames, lease: float) -> Consumer:
    """Return the consumer of the jobs without a key in an exclusive queue."""
    common: dict[str, Any] = {"ack_wait": lease, "max_ack_pending": -1, "max_deliver": -1}
    return await stream.create_consumer(durable_name="free", filter_subject=names.free_subject, **common)


async def _ensure(jet: Streams, name: str, **config: Any) -> None:
    try:
        await jet.stream(name)
    except StreamNotFoundError:
        await _create(jet, name, **config)


async def worker_consumers(stream: Stream, names: QueueNames, exclusive: bool, lease: float) -> list[Consumer]:
    """Return the consumers that workers pull from: keyed jobs apart from free ones in an exclusive queue."""
    common: dict[str, Any] = {"ack_wait": lease, "max_ack_pending": -1, "max_deliver": -1}
    if not exclusive:
        return [await stream.create_consumer(durable_name="workers", **common)]
    keyed = await stream.create_consumer(
        durable_name="workers", filter_subject=names.keyed_subjects, max_ack_pending_per_subject=1, **common
    )
    return [keyed, await free_consumer(stream, names, lease)]
