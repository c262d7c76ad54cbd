"""A durable consumer that tracks a streaming query's checkpoint, so that other tools can see the query's progress.

The checkpoint is authoritative; the consumer mirrors it. Spark reports that a batch is committed only when it builds
the next one, and never the last one, so the consumer is also reconciled with the offset that a query starts from.

- A stream with limits retention: the consumer's position is moved (``reset``), and its pending messages are the lag.
- A work queue, or interest retention: what was read has to be acknowledged, message by message, and is removed then.
  So this deliberately stays one batch behind: a batch whose commit Spark loses in a power loss can be read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pelton.api import (
    AckOp,
    ConfigError,
    ConsumerCreate,
    ConsumerReset,
    Delivered,
    PullRequest,
    consumer_config,
)

if TYPE_CHECKING:
    from pelton.spark.read.offsets import Offset
    from pelton.spark.read.options import ReadOptions
    from pelton.spark.store_handle import StoreHandle, StreamView

_PULL: Final = 1000


class ConsumerTracker:
    """Moves each stream's consumer to the query's position. Does nothing if the query names no consumer."""

    def __init__(self, store: StoreHandle, options: ReadOptions) -> None:
        self._store = store
        self._options = options
        self._name = options.consumer
        self._acked: dict[tuple[str, str], int] = {}
        self._floors: dict[str, int] = {}
        self._begun = False

    def reconcile(self, offset: Offset) -> None:
        """Move to the offset that a batch starts from: everything before it is committed."""
        if self._name is None:
            return
        self._move(offset, drain=not self._begun)
        self._begun = True

    def committed(self, offset: Offset) -> None:
        """Move to the end of a batch that Spark has committed."""
        if self._name is not None:
            self._move(offset, drain=True)

    def _move(self, offset: Offset, *, drain: bool) -> None:
        for stream in self._store.present(self._options.streams):
            position = offset.get(stream.name)
            if position is None or position.created != stream.created:
                continue
            key = (stream.name, stream.created)
            if key not in self._acked:
                self._make(stream)
                self._acked[key] = -1
            if position.sequence == self._acked[key]:
                continue
            if stream.config.retention == "limits":
                self._store.run(self._reset, stream.name, position.sequence + 1)
            elif not drain:
                continue
            else:
                self._store.run(self._drain, stream.name, position.sequence)
            self._acked[key] = position.sequence

    def _make(self, stream: StreamView) -> None:
        if stream.config.retention != "limits" and self._options.start.of(stream.name).kind != "earliest":
            raise ConfigError(
                f"a consumer acknowledges everything before its query, and stream {stream.name!r} then removes it: "
                "begin with the earliest message, or read without a consumer"
            )
        fields: dict[str, Any] = {"filter_subjects": list(self._options.subjects)} if self._options.subjects else {}
        config = consumer_config(
            durable_name=self._name,
            description="follows a Spark query",
            ack_policy="explicit",
            headers_only=True,
            max_ack_pending=_PULL,
            **fields,
        )
        self._store.run(self._store.jet.backend.call, ConsumerCreate(stream_name=stream.name, config=config))

    async def _reset(self, stream: str, seq: int) -> None:
        assert self._name is not None
        await self._store.jet.backend.call(ConsumerReset(stream=stream, name=self._name, seq=seq))

    async def _drain(self, stream: str, upto: int) -> None:
        """Acknowledge everything up to a sequence; messages pulled beyond it are nacked."""
        backend, name = self._store.jet.backend, self._name
        assert name is not None
        floor = max(self._floors.get(stream, 0), 0)
        while floor < upto:
            # Pull no more than there can be: the surplus would have to be nacked.
            found = await backend.pull(stream, name, PullRequest(batch=min(_PULL, upto - floor), no_wait=True))
            if not found:
                return
            refused = await backend.ack(stream, name, [_ack(delivered, upto) for delivered in found])
            for error in refused:
                if error is not None:
                    raise error
            floor = self._floors[stream] = min(max(floor, *(delivered.seq for delivered in found)), upto)


def _ack(delivered: Delivered, upto: int) -> AckOp:
    return AckOp(
        kind="ack" if delivered.seq <= upto else "nak",
        seq=delivered.seq,
        consumer_seq=delivered.consumer_seq,
        num_delivered=delivered.num_delivered,
        token=delivered.token,
    )
