"""A durable consumer that follows a streaming query's checkpoint, so that other tools see how far it has come.

The checkpoint is the truth; the consumer repeats it. Spark tells of a batch's end only when it builds the next one,
never of the last one, so the consumer is also reconciled from the offset that a query begins with.

- A stream that keeps messages by limits: the consumer's position is moved (``reset``). What it has left is the lag.
- A work queue, or a stream kept by interest: what was read has to be acknowledged, message by message, and is gone
  then. So this lags one batch behind on purpose: a batch whose end Spark forgets in a power loss can be read again.
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
    """Keeps the consumer of every stream of a query where the query is. Without a name it does nothing."""

    def __init__(self, store: StoreHandle, options: ReadOptions) -> None:
        self._store = store
        self._options = options
        self._name = options.consumer
        self._acked: dict[tuple[str, str], int] = {}
        self._floors: dict[str, int] = {}
        self._begun = False

    def reconcile(self, offset: Offset) -> None:
        """Hear where the query stands: all before it was done."""
        if self._name is None:
            return
        self._move(offset, drain=not self._begun)
        self._begun = True

    def committed(self, offset: Offset) -> None:
        """Hear that Spark has begun the batch after one that ended here."""
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
                f"a consumer acknowledges all that lies before its query, and stream {stream.name!r} then removes it: "
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
        """Acknowledge everything up to a sequence; what was pulled beyond it goes back."""
        backend, name = self._store.jet.backend, self._name
        assert name is not None
        floor = max(self._floors.get(stream, 0), 0)
        while floor < upto:
            # No more than there can be: what is pulled too much has to go back.
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
