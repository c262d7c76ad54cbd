"""The handles of a transaction, and of reads with SQL on one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, Unpack

from pelton.api import (
    AckKind,
    Backend,
    ConfigError,
    Outgoing,
    PeltonError,
    PubAck,
    Reading,
    Transacting,
    TransactionError,
)
from pelton.api.arguments import check_instance, check_text, message_of
from pelton.api.build import seconds_to_ns
from pelton.api.times import Seconds
from pelton.jet.message import (
    AnyMessage,
    Message,
    PublishOptions,
    ack_of,
    all_outgoing,
    publish_block,
    reason_text,
    send,
    settle,
)

_MOST_S: Final = 60.0
_NOT_BEGUN: Final = "it has not begun: use 'async with jet.transaction() as tx'"


class StreamsTransaction:
    """A transaction over an embedded store: the part for streams. Use it in ``async with``."""

    def __init__(self, backend: Backend, timeout: Seconds) -> None:
        self._backend = backend
        self._timeout = seconds_to_ns("timeout", timeout, "transaction") / 1e9
        if not 0 < self._timeout <= _MOST_S:
            raise ConfigError(
                f"transaction: timeout is {self._timeout:g} s; it must be more than 0 and at most {_MOST_S:g} s,"
                " because all other writes wait until it ends"
            )
        self._open: Transacting | None = None
        self._block: Savepoint | None = None

    async def __aenter__(self) -> Self:
        if self._block is not None:
            raise TransactionError("it was already used: call jet.transaction() again for each block")
        self._open = self._backend.transaction(self._timeout)
        self._block = Savepoint(self._open)
        await self._block.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._block is not None
        await self._block.__aexit__(kind, error, trace)

    def _port(self) -> Transacting:
        if self._open is None:
            raise TransactionError(_NOT_BEGUN)
        return self._open

    def savepoint(self) -> Savepoint:
        """Return a block within the transaction: ``async with tx.savepoint():`` undoes it alone when it raises."""
        return Savepoint(self._port())

    async def publish(self, subject: str, data: bytes = b"", **options: Unpack[PublishOptions]) -> PubAck:
        """Store a message, as ``jet.publish`` does; its sequence is final, and no one else sees it before the commit.

        ``options`` are the same. Raises what ``jet.publish`` raises: nothing is stored then, and the transaction may
        continue.
        """
        if type(subject) is not str or type(data) is not bytes:
            subject, data = message_of(subject, data)
        message = Outgoing(subject, data, publish_block(options))
        return (await send(self._backend, [message], self._port().publish))[0]

    async def publish_batch(self, messages: Iterable[AnyMessage]) -> list[PubAck]:
        """Store messages in order. Raises the error of the first that is refused; none of them is stored then."""
        return await send(self._backend, all_outgoing(messages), self._port().publish)

    async def ack(self, *messages: Message) -> None:
        """Settle messages. Raises AckRejectedError if one was redelivered."""
        await self._say("ack", messages)

    async def nak(self, *messages: Message, delay: Seconds = 0) -> None:
        """Give messages back, to be redelivered after ``delay`` seconds. Raises AckRejectedError."""
        await self._say("nak", messages, delay_ns=seconds_to_ns("delay", delay, "transaction"))

    async def term(self, *messages: Message, reason: str = "") -> None:
        """Settle messages so that they are never redelivered, for a ``reason``. Raises AckRejectedError."""
        await self._say("term", messages, reason=reason_text("transaction", reason))

    async def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL on the store's own file, in this transaction, and return the rows.

        You can create, alter and write your own tables, and read Pelton's. ``bindings`` fill ``?`` by position
        or ``:name`` by name. Raises SqlConstraintError, SqlForbiddenError, SqlError: the statement has changed nothing
        then, and the transaction may continue.
        """
        check_text("transaction", "the statement", statement)
        return await self._port().sql(statement, bindings)

    async def _say(self, kind: AckKind, messages: Sequence[Message], *, delay_ns: int = 0, reason: str = "") -> None:
        for message in messages:
            if not isinstance(message, Message):
                check_instance("transaction", "a message", message, Message, "give messages, not a list of them")
        of_consumers: dict[tuple[str, str], list[Message]] = {}
        for message in messages:
            of_consumers.setdefault((message.delivered.stream, message.delivered.consumer), []).append(message)
        refused: list[PeltonError] = []
        for mine in of_consumers.values():
            delivered = [message.delivered for message in mine]
            acks = [ack_of(one, kind, delay_ns=delay_ns, reason=reason) for one in delivered]
            refused += filter(None, await settle(self._backend, delivered, acks, self._port().ack))
            for message in mine:
                message.is_settled = True
        if refused:
            raise refused[0]


class Savepoint:
    """A block of a transaction that is undone alone when it raises. Use it in ``async with``."""

    __slots__ = ("_level", "_open")

    def __init__(self, transaction: Transacting) -> None:
        self._open = transaction
        self._level: int | None = None

    async def __aenter__(self) -> None:
        if self._level is not None:
            raise TransactionError("this savepoint was already used: call tx.savepoint() again for each block")
        self._level = await self._open.enter()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._level is not None
        await self._open.leave(self._level, keep=kind is None)


_LONGEST_READ_S: Final = 3600.0


class SqlReads:
    """SQL that reads one snapshot of the store. Made by ``jet.read()``, used in ``async with``."""

    def __init__(self, backend: Backend, timeout: Seconds) -> None:
        self._timeout = seconds_to_ns("timeout", timeout, "read") / 1e9
        if not 0 < self._timeout <= _LONGEST_READ_S:
            raise ConfigError(f"read: timeout is {self._timeout:g} s; it must be more than 0 and at most 3600 s")
        self._backend = backend.to_embedded("read")
        self._reading: Reading | None = None

    async def __aenter__(self) -> Self:
        if self._reading is not None:
            raise TransactionError("it was already used: call jet.read() again for each block")
        reading = self._reading = self._backend.reading(self._timeout)
        await reading.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reading is not None
        await self._reading.leave()

    async def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL that reads, and return the rows; ``bindings`` fill ``?`` by position or ``:name`` by name.

        Raises SqlError, TransactionError outside of its block, SqlForbiddenError for anything that writes,
        SnapshotTimeoutError; StoreBusyError if the store was not in use when the block began, and a process has opened
        it since: begin again.
        """
        check_text("read", "the statement", statement)
        if self._reading is None:
            raise TransactionError("it has not begun: use 'async with jet.read() as view'")
        return await self._reading.sql(statement, bindings)
