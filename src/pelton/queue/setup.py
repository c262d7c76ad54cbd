"""The parts of a queue: its four streams and its consumers, made if they are missing.

The metadata of the jobs' stream stores the settings that all users of the queue have to agree on. Any number of
processes may open a queue for the first time at once.

The settings of an existing queue: ``exclusive`` and ``lease`` are fixed, because running workers rely on them.
``history_max_age`` and ``num_replicas`` only affect the streams, so new values take effect at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import ApiError, ConfigError, QueueNotFoundError, StreamNotFoundError
from pelton.api.config import DUPLICATE_WINDOW
from pelton.api.times import duration_of
from pelton.jet.registers import ASK_AGAIN_S
from pelton.queue.model.limits import Order, encode_order
from pelton.queue.model.naming import FLOWS_CONSUMER, PLACE, SIDES, SIGNALS_CONSUMER, QueueNames
from pelton.queue.model.options import seconds, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pelton.api.times import Seconds
    from pelton.jet import Consumer, Stream, Streams
    from pelton.queue.registry import QueueContext

EXCLUSIVE: Final = "pelton.queue.exclusive"
LEASE: Final = "pelton.queue.lease"
KEYS: Final = "pelton.queue.keys"
RECORDS: Final = "records"
TOKENS: Final = "pelton.queue.tokens"
"""What the tokens of jobs are counted from on a cluster, where those of deliveries begin again with each consumer."""
_DEFAULT_LEASE_S: Final = 30.0
_SHORTEST_LEASE_S: Final = 0.1
_LONGEST_LEASE_S: Final = 86_400.0
_DEFAULT_HISTORY_S: Final = 7 * 86_400.0
_SHORTEST_AGE_S: Final = 0.1
_ATTEMPTS_AGE: Final = timedelta(days=30)
_TRACES_AGE: Final = timedelta(days=366)
_SHORTEST_FLOW_WAIT_S: Final = 3.0
_TRIES: Final = 6
_WRITES_AGE: Final = timedelta(seconds=60)


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings to open a queue with; durations in seconds. None: unchanged, or the default for a new queue."""

    exclusive: bool | None = None
    lease: float | None = None
    history_max_age: float | None = None
    num_replicas: int | None = None
    create: bool = True


def queue_settings(
    queue: str,
    exclusive: bool | None,
    lease: Seconds | None,
    history_max_age: Seconds | None,
    num_replicas: int | None,
    create: bool = True,
) -> QueueSettings:
    """Return checked settings. Raises ConfigError."""
    if exclusive is not None and not isinstance(exclusive, bool):
        raise ConfigError(f"queue {queue!r}: exclusive is {exclusive!r}; it must be True or False")
    lease_s = None if lease is None else seconds(f"queue {queue!r}: lease", lease)
    if lease_s is not None and not _SHORTEST_LEASE_S <= lease_s <= _LONGEST_LEASE_S:
        raise ConfigError(f"queue {queue!r}: lease is {lease_s:g} s; it must be from {_SHORTEST_LEASE_S:g} s to a day")
    age = None if history_max_age is None else seconds(f"queue {queue!r}: history_max_age", history_max_age)
    if age is not None and 0 < age < _SHORTEST_AGE_S:
        raise ConfigError(
            f"queue {queue!r}: history_max_age is {age:g} s; it must be {_SHORTEST_AGE_S:g} s or more, or 0: no limit"
        )
    replicas = None if num_replicas is None else whole(f"queue {queue!r}: num_replicas", num_replicas)
    return QueueSettings(
        exclusive=exclusive, lease=lease_s, history_max_age=age, num_replicas=replicas, create=bool(create)
    )


async def jobs_stream(jet: Streams, names: QueueNames, settings: QueueSettings) -> Stream:
    """Return the stream of the jobs, which also stores what all users of the queue have to agree on."""
    try:
        stream = await jet.stream(names.jobs)
    except StreamNotFoundError:
        if not settings.create:
            raise QueueNotFoundError(names.queue) from None
        await _refuse_taken_names(jet, names)
        stream = await _make_jobs_stream(jet, names, settings)
    check_is_queue(names, stream)
    found = stream.config.metadata
    _agree(names.queue, "exclusive", settings.exclusive, found[EXCLUSIVE] == "true")
    _agree(names.queue, "lease", settings.lease, float(found[LEASE]))
    return await _replicate(jet, stream, settings)


def check_is_queue(names: QueueNames, stream: Stream) -> None:
    """Raise ConfigError for a stream that is not that of a queue's jobs."""
    if not {EXCLUSIVE, LEASE} <= {*stream.config.metadata}:
        raise _taken_error(names, stream)


async def with_places(jet: Streams, names: QueueNames, stream: Stream) -> Stream:
    """Return the stream of a queue with room for scheduled jobs; one that an older version made gets it here."""
    allow_direct = stream.config.allow_direct or is_in_file(jet)
    if {*names.job_subjects} <= {*stream.config.subjects} and stream.config.allow_direct == allow_direct:
        return stream
    config = {"subjects": list(names.job_subjects), "allow_direct": allow_direct}
    return await jet.update_stream(names.jobs, allow_msg_schedules=True, allow_msg_ttl=True, **config)


def is_in_file(jet: Streams) -> bool:
    """Whether a queue is opened in its file, whose direct gets are as recent as others: not through a server."""
    return jet.backend.planning.has_exclusive_subjects


async def _refuse_taken_names(jet: Streams, names: QueueNames) -> None:
    """Raise ConfigError if a new queue would share a stream with another one: ``mail_dead`` with ``mail``."""
    for name, subject in names.sides:
        try:
            stream = await jet.stream(name)
        except StreamNotFoundError:
            continue
        if subject not in stream.config.subjects:
            raise _taken_error(names, stream)
    base, _, side = names.queue.rpartition("_")
    if base and side in SIDES and await jet.stream_names(QueueNames(base).free_subject):
        # Even if that stream is not made yet, or only on another backend.
        raise ConfigError(
            f"queue {names.queue!r}: queue {base!r} keeps its {SIDES[side]} under this name; "
            "give the queue another name"
        )


async def queue_names(jet: Streams) -> list[str]:
    prefix = QueueNames("x").jobs.removesuffix("x")
    # Of a queue's streams, only that of its jobs takes this subject.
    found = await jet.stream_names("$JOBS.*.free")
    return [name.removeprefix(prefix) for name in found if name.startswith(prefix)]


def _taken_error(names: QueueNames, stream: Stream) -> ConfigError:
    """Return the error for a stream that has a name of this queue but belongs to something else."""
    config = stream.config
    if EXCLUSIVE in config.metadata:
        owner = f"holds the jobs of queue {config.name.removeprefix('JOBS_')!r}"
    else:
        base, _, side = config.name.removeprefix("JOBS_").rpartition("_")
        is_side = base and (config.name, *config.subjects) in QueueNames(base).sides
        owner = f"holds the {SIDES[side]} of queue {base!r}" if is_side else "is not part of a queue"
    return ConfigError(
        f"queue {names.queue!r} needs the stream {config.name!r}, which {owner}: give this queue another name, or "
        f"delete that stream if it is not needed"
    )


async def _make_jobs_stream(jet: Streams, names: QueueNames, settings: QueueSettings) -> Stream:
    exclusive, is_file = bool(settings.exclusive), is_in_file(jet)
    lease = _DEFAULT_LEASE_S if settings.lease is None else settings.lease
    metadata = {EXCLUSIVE: "true" if exclusive else "false", LEASE: repr(lease)}
    config: dict[str, Any] = {
        "subjects": list(names.job_subjects),
        "metadata": metadata,
        "num_replicas": settings.num_replicas or 1,
        "allow_msg_schedules": True,
        "allow_msg_ttl": True,
        "allow_direct": is_file,
    }
    if exclusive and not is_file:
        # In a work queue only acks remove messages, and a watch would not be possible.
        config |= {"retention": "limits", "allow_direct": True, "metadata": metadata | {KEYS: RECORDS}}
    else:
        config["retention"] = "workqueue"
        if not is_file:
            first = await _reserve_first_token(jet, f"{names.jobs}_tokens", config["num_replicas"])
            config["metadata"] = metadata | {TOKENS: str(first)}
    if await jet.stream_names(f"{names.root}.>"):
        # Its jobs were deleted, but records of them remain: no later job may have their ids.
        config["first_seq"] = await _reserve_first_token(jet, names.jobs, config["num_replicas"])
    return await _create(jet, names.jobs, **config)


async def _reserve_first_token(jet: Streams, stream: str, replicas: int) -> int:
    from pelton.buckets import reserve_first_token

    return await reserve_first_token(jet, stream, replicas)


async def _create(jet: Streams, name: str, **config: Any) -> Stream:
    try:
        return await jet.create_stream(name, **config)
    except ApiError as error:
        if error.constant != "JSStreamNameExistErr":
            raise
    # Another process has made it in the meantime, with other options, or with another first sequence. Servers that have
    # not agreed on it yet say that there is none.
    for _ in range(_TRIES):
        with suppress(StreamNotFoundError):
            return await jet.stream(name)
        await jet.runtime.clock.sleep(ASK_AGAIN_S)
    return await jet.stream(name)


def _agree(queue: str, option: str, asked: float | None, found: float) -> None:
    if asked is not None and asked != found:
        raise ConfigError(
            f"queue {queue!r} was made with {option}={found} and cannot be opened with {option}={asked}: its running "
            f"workers rely on it. Open it with {option}={found}, or leave {option} out; to change it, make a new queue "
            "under another name"
        )


async def side_streams(jet: Streams, names: QueueNames, settings: QueueSettings) -> None:
    """Make the side streams: history, dead letters, attempts, orders, progress. All at once: a file syncs them once."""
    age, last = settings.history_max_age, {"max_msgs_per_subject": 1}
    history, *_ = await asyncio.gather(
        _side(jet, names, names.history, settings, max_age=_DEFAULT_HISTORY_S if age is None else age),
        _side(jet, names, names.dead, settings),
        _side(jet, names, names.attempts, settings, max_age=_ATTEMPTS_AGE, **last),
        _side(jet, names, names.control, settings, allow_msg_ttl=True, **last),
        _side(jet, names, names.running, settings, allow_msg_ttl=True, max_age=_TRACES_AGE, **last),
    )
    if age is not None and history.config.max_age != (kept := duration_of("history_max_age", age)):
        window = min(DUPLICATE_WINDOW, kept or DUPLICATE_WINDOW)
        await jet.update_stream(names.history, max_age=age, duplicate_window=window)
    if settings.num_replicas is not None:
        # That of flows is there if the queue has had some.
        with suppress(StreamNotFoundError):
            await _replicate(jet, await jet.stream(names.flows), settings)


async def flows_stream(jet: Streams, names: QueueNames) -> Stream:
    """Make the stream of the flows: only for queues that have some."""
    replicas = (await jet.stream(names.jobs)).config.num_replicas
    return await _side(jet, names, names.flows, QueueSettings(num_replicas=replicas))


async def flows_consumer(stream: Stream, names: QueueNames, lease: float) -> Consumer:
    filters = [names.flow_begin("*"), names.flow_log("*"), names.flow_told("*", "*")]
    return await lasting_consumer(stream, FLOWS_CONSUMER, filters, max(lease, _SHORTEST_FLOW_WAIT_S))


async def signals_consumer(stream: Stream, names: QueueNames, lease: float) -> Consumer:
    return await lasting_consumer(stream, SIGNALS_CONSUMER, [names.all_signals], max(lease, _SHORTEST_FLOW_WAIT_S))


async def prepare_signals(queue: QueueContext) -> None:
    """Make what a queue needs whose jobs wait for signals: the consumer, and the order by which workers learn of it."""
    names = queue.names
    if SIGNALS_CONSUMER not in queue.prepared:
        await signals_consumer(await queue.jet.stream(names.running), names, queue.lease)
        await queue.backend.publish(names.order_subject(SIGNALS_CONSUMER), encode_order(Order(signals=True)))
        queue.prepared.add(SIGNALS_CONSUMER)


async def keys_stream(jet: Streams, names: QueueNames, settings: QueueSettings) -> None:
    """Make the stream of the keys' records, for exclusive queues on a cluster."""
    # A record is written under a condition, so an id only needs to be known for as long as a write is repeated.
    config: dict[str, Any] = {"max_msgs_per_subject": 1, "allow_msg_ttl": True, "duplicate_window": _WRITES_AGE}
    await _side(jet, names, names.keys, settings, **config)


async def _side(jet: Streams, names: QueueNames, name: str, settings: QueueSettings, **config: Any) -> Stream:
    """Return a side stream, made if it is missing, with the requested number of replicas."""
    subject, replicas = dict(names.sides)[name], settings.num_replicas or 1
    try:
        stream = await jet.stream(name)
    except StreamNotFoundError:
        if name == names.keys:
            # Sequences are tokens: a holder of a key of a deleted queue must hold none in a new queue of that name.
            config["first_seq"] = await _reserve_first_token(jet, name, replicas)
        stream = await _create(jet, name, subjects=[subject], num_replicas=replicas, **config)
    if subject not in stream.config.subjects:
        raise _taken_error(names, stream)
    return await _replicate(jet, stream, settings)


async def _replicate(jet: Streams, stream: Stream, settings: QueueSettings) -> Stream:
    wanted = settings.num_replicas
    if wanted is None or wanted == stream.config.num_replicas:
        return stream
    return await jet.update_stream(stream.name, num_replicas=wanted)


async def free_consumer(stream: Stream, names: QueueNames, lease: float) -> Consumer:
    """Return the consumer of the jobs without a key in an exclusive queue."""
    return await lasting_consumer(stream, "free", names.free_jobs, lease)


async def lasting_consumer(stream: Stream, name: str, filters: Sequence[str], lease: float, **more: Any) -> Consumer:
    """Return a consumer that workers pull from, made if it is missing: how often a job is tried is not its matter."""
    # As earlier versions made them: an equal configuration is no update.
    more |= {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": list(filters)}
    return await stream.create_consumer(durable_name=name, ack_wait=lease, max_ack_pending=-1, max_deliver=-1, **more)


async def existing_consumers(stream: Stream, names: QueueNames) -> list[Consumer]:
    """Return the consumers that workers pull from, of a queue that is only looked at; those of tenants are found anew.

    As :func:`ranked_consumers` and others return them: those with a priority first.
    """
    found = [name for name in await stream.consumer_names() if not names.is_tenant_consumer(name)]
    ranked = [name for name in found if name.startswith("rank")]
    others = [name for name in found if name not in ranked]
    return [await stream.consumer(name) for name in (*reversed(ranked), *others)]


async def ranked_consumers(stream: Stream, names: QueueNames, lease: float) -> list[Consumer]:
    """Return the consumers of the jobs with a priority, the highest first."""
    making = [
        lasting_consumer(stream, f"rank{priority}", (jobs,), lease)
        for priority, jobs in reversed(list(enumerate(names.ranked_jobs, 1)))
    ]
    return await asyncio.gather(*making)


async def worker_consumers(stream: Stream, names: QueueNames, exclusive: bool, lease: float) -> list[Consumer]:
    """Return the consumers that workers pull from: keyed jobs apart from free ones in an exclusive queue."""
    if not exclusive:
        # Schedules are messages of the stream, too: no worker takes them.
        return [await lasting_consumer(stream, "workers", names.free_jobs, lease)]
    keyed = await lasting_consumer(
        stream,
        "workers",
        names.keyed_jobs,
        lease,
        max_ack_pending_per_subject=1,
        max_ack_pending_subject_end=PLACE,
        max_ack_pending_subject_ranks=list(names.key_ranks),
    )
    return [keyed, await free_consumer(stream, names, lease)]
