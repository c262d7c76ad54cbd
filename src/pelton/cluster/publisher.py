"""Publishing to a cluster: many in flight, each acknowledged, stored once whatever happens to the connection.

Design: A publish whose acknowledgement is lost may have been stored. It is sent again, with the same message id, so
that the stream recognizes the duplicate and both count as one. A message without an id gets one of ours (unless the
settings turn that off; why: docs/decisions/0012). Without any id, an unknown outcome is reported as an error. A
condition that the first attempt fulfilled fails for the second: then it is checked whose message is
stored there.

"No responders" means that no stream takes the subject, or that the stream's leader is being elected: the list of
streams tells which.

**A conditional publish that is repeated because its reply was lost, and refused because the first was stored.**
Nats-server checks expected sequences before it looks for a known message id, so the refusal of the second attempt may
be due to the first. If the first was stored, it comes right after the expected sequence: the id of the message there
shows whether it is ours. (A message that a limit has removed since cannot be checked; the refusal stands then.)

**The order of publishes that cannot be sent at once: there is no connection, or no room in it.** Every publish has a
number, in call order. Those that are sent at once are in order by themselves. One that has to wait, or whose connection
broke before its reply came, waits here until it has the smallest number of all that wait; until then nothing later is
sent. So publishes lost with a connection are sent again in their old order, all in flight at once, ahead of later ones.

**What an embedded store does in one transaction, in steps on a server: settling once, and withdrawing messages.** A
server neither refuses the ack of a delivery that was replaced, nor does it tell whether anybody holds a message. So the
last message of an ending is stored on condition that there is none of its filter ``once``: the first counts.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Final, TypeVar

from pelton.api import (
    AckRejectedError,
    ApiError,
    Backend,
    ConfigError,
    MessageNotFoundError,
    MsgDelete,
    MsgGet,
    NoStreamForSubjectError,
    Outgoing,
    PeltonError,
    PubAck,
    ServerTimeoutError,
    Settled,
    StreamNames,
    WrongLastSequenceError,
    headers,
)
from pelton.api.admission import check_subject
from pelton.api.codec import api_subject, decode_reply, encode_body
from pelton.api.errors import is_passing
from pelton.api.message import decode_pub_ack
from pelton.api.store_errors import FINAL_ERRORS
from pelton.api.tracing import Replacement, Withdrawn, as_first, only_of
from pelton.cluster.api_calls import Retry
from pelton.cluster.connection import Answer, Connection, Interrupted, NotSent, Silent


async def stored_before(connection: Connection, stream: str, message: Outgoing) -> PubAck | None:
    """Return the acknowledgement of a message that an earlier attempt stored; None if none did.

    Raises Interrupted, StoreError.
    """
    told = headers.decode(message.headers or b"")
    request = _place(stream, message.subject, told)
    if request is None:
        return None
    where = api_subject(request, connection.settings.api_prefix)
    try:
        answer = await connection.ask(where, encode_body(request), again=True)
        found = decode_reply(request, answer.data).message
    except ApiError:
        return None
    is_ours = headers.decode(found.hdrs).get(headers.MSG_ID) == told[headers.MSG_ID]
    return PubAck(stream, found.seq, duplicate=True) if is_ours else None


def _place(stream: str, subject: str, told: headers.Headers) -> MsgGet | None:
    """Return the request for the message right after the expected sequence."""
    last = told.get(headers.EXPECTED_LAST_SEQUENCE, "").strip()
    if last.isdigit():
        return MsgGet(stream=stream, seq=int(last) + 1)
    last = told.get(headers.EXPECTED_LAST_SUBJECT_SEQUENCE, "").strip()
    return MsgGet(stream=stream, seq=int(last) + 1, next_by_subj=subject) if last.isdigit() else None


T = TypeVar("T")


class SendOrder:
    """The turn to send."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._gone: set[int] = set()
        self._turns: dict[int, asyncio.Future[None]] = {}

    @property
    def is_free(self) -> bool:
        """Whether no publish waits, so that you may send at once."""
        return not self._numbers

    async def send(self, number: int, attempt: Callable[[], T | None], ready: Callable[[], Awaitable[object]]) -> T:
        """Return the result of ``attempt`` once it is ``number``'s turn and the result is not None.

        ``ready`` returns when it is worth trying again; an error it raises ends the wait.
        """
        heapq.heappush(self._numbers, number)
        try:
            while True:
                if self._numbers[0] != number:
                    await self._turn_of(number)
                elif (sent := attempt()) is not None:
                    return sent
                else:
                    # In the meantime one with a smaller number may come.
                    await ready()
        finally:
            self._leave(number)

    async def _turn_of(self, number: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[number] = turn
        try:
            await turn
        finally:
            del self._turns[number]

    def _leave(self, number: int) -> None:
        self._gone.add(number)
        while self._numbers and self._numbers[0] in self._gone:
            self._gone.remove(heapq.heappop(self._numbers))
        turn = self._turns.get(self._numbers[0]) if self._numbers else None
        if turn is not None and not turn.done():
            turn.set_result(None)


_IN_FLIGHT: Final = 4096
_NEWS_S: Final = 0.25
_REMEMBERED: Final = 65_536
_MSG_ID: Final = b"\r\n" + headers.MSG_ID.encode() + b":"
_OPENING: Final = b"NATS/1.0\r\n" + headers.MSG_ID.encode() + b": "
_END: Final = b"\r\n\r\n"


class Publisher:
    """Publishes over one connection. ``base`` begins its message ids, and is unique."""

    def __init__(self, connection: Connection, base: str) -> None:
        self._connection = connection
        self._base = base.encode()
        self._numbers = count()
        self._calls = count()
        self._order = SendOrder()
        self._gives_ids = connection.settings.message_ids
        # Real traffic repeats its subjects; cleared when it is full.
        self._sound: set[str] = set()

    async def publish(self, message: Outgoing) -> PubAck:
        """Store a message and return its acknowledgement; raises as `Backend.publish`."""
        self._check(message.subject)
        if self._gives_ids:
            message = self._with_id(message)
        number, safe = next(self._calls), _has_id(message.headers)
        begun = self._connection.clock.monotonic()
        sent = self._connection.try_send(message, again=safe) if self._order.is_free else None
        retry: Retry | None = None
        in_doubt = False
        while True:
            if sent is None:
                retry = retry or Retry(self._connection)
                sent = await self._in_order(number, message, retry, again=safe)
            try:
                return await self._outcome(sent, message, in_doubt=in_doubt)
            except Interrupted as lost:
                if isinstance(lost, Silent):
                    # Beyond a gateway or a leaf node nobody tells that no stream takes it.
                    if not safe or self._connection.clock.monotonic() - begun >= self._connection.settings.patience:
                        raise self._connection.no_answer() from None
                elif not safe:
                    raise unknown(self._connection, 1) from None
                in_doubt = True
            except PeltonError as error:
                if not await self.passes(error):
                    raise
                # Its stream elects a leader: publishes to other streams do not wait for that.
                retry = retry or Retry(self._connection)
                await retry.after(error)
            sent = None

    async def _in_order(self, number: int, message: Outgoing, retry: Retry, *, again: bool) -> asyncio.Future[Answer]:
        """Send a message after those that were published before it, as soon as there is a connection and room."""

        async def ready() -> None:
            await retry.until_connected(NotSent())
            await self._connection.room()

        return await self._order.send(number, lambda: self._connection.try_send(message, again=again), ready)

    def _check(self, subject: str) -> None:
        """Raise ConfigError for an invalid subject: a server would close the connection, or store it anyway."""
        if subject in self._sound:
            return
        check_subject(subject)
        if len(self._sound) >= _REMEMBERED:
            self._sound.clear()
        self._sound.add(subject)

    async def _outcome(self, sent: asyncio.Future[Answer], message: Outgoing, *, in_doubt: bool) -> PubAck:
        """Return the acknowledgement of a sent message; ``in_doubt``: an earlier attempt may have stored it."""
        try:
            return ack_in(message.subject, await sent)
        except WrongLastSequenceError as error:
            before = await stored_before(self._connection, error.stream, message) if in_doubt else None
            if before is None:
                raise
            return before

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store messages in order; raises the error of the first refused one.

        Up to 4,096 are in flight at a time, so some of those after a refused message may have been stored.
        """
        for index, message in enumerate(messages):
            try:
                self._check(message.subject)
            except ConfigError:
                await self._publish_all(messages[:index])
                raise
        return await self._publish_all(messages)

    async def _publish_all(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        if self._gives_ids:
            messages = self.with_ids(messages)
        acks: list[PubAck] = []
        retry: Retry | None = None
        while len(acks) < len(messages):
            window = messages[len(acks) : len(acks) + _IN_FLIGHT]
            answers = await self._connection.ask_all(window)
            before = len(acks)
            reason = await self._take_in(window, answers, acks)
            if reason is None or len(acks) > before:
                retry = None
            if reason is not None:
                retry = retry or Retry(self._connection)
                await retry.after(reason)
        return acks

    async def _take_in(
        self, window: Sequence[Outgoing], answers: Sequence[Answer | Exception], acks: list[PubAck]
    ) -> Exception | None:
        """Add acks up to the first message that must be sent again, and return why; raises final errors."""
        for index, (message, answer) in enumerate(zip(window, answers, strict=True)):
            try:
                if isinstance(answer, Exception):
                    raise answer
                acks.append(ack_in(message.subject, answer))
            except Interrupted as lost:
                uncertain = sum(map(_may_be_stored, answers, window))
                if uncertain:
                    raise unknown(self._connection, uncertain) from None
                return lost
            except PeltonError as error:
                # Some of those after it may be stored: only ids prevent duplicates.
                again = _has_id(message.headers) or not any(map(_is_stored, answers[index + 1 :]))
                if not (again and await self.passes(error)):
                    raise
                return error
        return None

    def with_ids(self, messages: Sequence[Outgoing]) -> list[Outgoing]:
        """Return messages that are safe to send twice: those without an id get one."""
        return [self._with_id(message) for message in messages]

    def _with_id(self, message: Outgoing) -> Outgoing:
        return Outgoing(message.subject, message.data, self._block_with_id(message.headers))

    def _block_with_id(self, block: bytes | None) -> bytes:
        if block is None:
            return b"%b%b%d%b" % (_OPENING, self._base, next(self._numbers), _END)
        if _MSG_ID in block:
            return block
        return b"%b\r\n%b: %b%d%b" % (block[:-4], headers.MSG_ID.encode(), self._base, next(self._numbers), _END)

    async def passes(self, error: PeltonError) -> bool:
        """Whether an error is temporary, and what was published was not stored."""
        if isinstance(error, NoStreamForSubjectError):
            return await self._is_taken(error.subject)
        return is_passing(error)

    async def _is_taken(self, subject: str) -> bool:
        """Whether a stream takes a subject that has no responders: its leader is being elected."""
        request = StreamNames(subject=subject)
        where = api_subject(request, self._connection.settings.api_prefix)
        try:
            # The first reply may be from before the stream was known everywhere.
            for pause in (0.0, _NEWS_S):
                await self._connection.clock.sleep(pause)
                answer = await self._connection.ask(where, encode_body(request), again=True)
                if answer.is_unheard or decode_reply(request, answer.data).streams:
                    return True
                if not self._connection.is_clustered:
                    break
            return False
        except Interrupted:
            return True
        except PeltonError as error:
            return is_passing(error)


def _may_be_stored(answer: Answer | Exception, message: Outgoing) -> bool:
    """Whether the fate of a message is unknown, and sending it again might store it twice."""
    return isinstance(answer, Interrupted) and not isinstance(answer, NotSent) and not _has_id(message.headers)


def _is_stored(answer: Answer | Exception) -> bool:
    """Whether a message is stored, or may be."""
    if isinstance(answer, Exception):
        return isinstance(answer, Interrupted) and not isinstance(answer, NotSent)
    return not answer.is_unheard and isinstance(decode_pub_ack(answer.data), PubAck)


def _has_id(block: bytes | None) -> bool:
    return block is not None and _MSG_ID in block


def unknown(connection: Connection, number: int) -> ServerTimeoutError:
    """Return the error for publishes whose fate is unknown."""
    what = "a publish" if number == 1 else f"up to {number} publishes"
    reason = f"the connection was lost while {what} awaited acknowledgement; with a msg_id it is safe to repeat"
    return ServerTimeoutError(connection.settings.name, reason)


def ack_in(subject: str, answer: Answer) -> PubAck:
    """Return the acknowledgement in a reply; raises the error that it holds."""
    if answer.is_unheard:
        raise NoStreamForSubjectError(subject)
    found = decode_pub_ack(answer.data)
    if isinstance(found, PubAck):
        return found
    raise found


_AT_ONCE: Final = 64
_DELETE_FAILED: Final = 10057
_SOON_NS: Final = 10**9


def messages_of(ending: Settled | Replacement) -> Sequence[Outgoing]:
    """Return the messages of an ending, the last of which has to be the first of its filter, if it has one."""
    messages = ending.messages
    return [*messages[:-1], as_first(messages[-1], ending.once)] if ending.once else messages


async def publish_each(
    publisher: Publisher, groups: Sequence[Sequence[Outgoing]], refusals: Sequence[PeltonError | None]
) -> list[PeltonError | None]:
    """Publish groups of messages with ids, except for those that were refused before; return why each is refused."""
    answers = list(refusals)
    wanted = [index for index, refused in enumerate(refusals) if refused is None and groups[index]]
    try:
        await publisher.publish_all([message for index in wanted for message in groups[index]])
    except (ApiError, ConfigError):
        # Their ids make it harmless to repeat those that were stored.
        for index in wanted:
            answers[index] = await _refusal(publisher, groups[index])
    return answers


async def _refusal(publisher: Publisher, messages: Sequence[Outgoing]) -> PeltonError | None:
    try:
        await publisher.publish_all(messages)
    except (ApiError, ConfigError) as refused:
        return refused
    return None


async def settle_each(
    backend: Backend, publisher: Publisher, endings: Sequence[Settled], stream: str, consumer: str, now: int
) -> list[PeltonError | None]:
    """Settle deliveries side by side: see `Backend.settle_many`. ``now`` is the time, in wall nanoseconds."""
    named = [publisher.with_ids(messages_of(ending)) for ending in endings]
    before: list[PeltonError | None] = [_why_too_late(ending, stream, consumer, now) for ending in endings]
    # The last message of each tells that its others are stored: it is published after them, or not at all.
    before = await publish_each(publisher, [messages[:-1] for messages in named], before)
    refusals = await publish_each(publisher, [messages[-1:] for messages in named], before)
    left: list[int] = []
    for index, (ending, refused) in enumerate(zip(endings, refusals, strict=True)):
        # If one before its last message was refused, it is not settled at all.
        if ending.once and isinstance(refused, WrongLastSequenceError) and before[index] is None:
            refusals[index] = await why_without_effect(backend, ending, stream, consumer, refused)
            # It is settled, by whomever: it is not to be delivered for ever.
            if refusals[index] is None or ending.ack.kind != "progress":
                left.append(index)
        elif refused is None:
            left.append(index)
    answers = await backend.ack(stream, consumer, [endings[index].ack for index in left])
    for index, answer in zip(left, answers, strict=True):
        refusals[index] = refusals[index] or answer
    return refusals


def _why_too_late(ending: Settled, stream: str, consumer: str, now: int) -> PeltonError | None:
    """Return why a delivery can't be settled any more that is due in a moment."""
    if 0 < ending.due <= now + _SOON_NS:
        return AckRejectedError(stream, consumer, ending.ack.seq, "it is about to be delivered")
    return None


async def why_without_effect(
    backend: Backend, ending: Settled, stream: str, consumer: str, refused: WrongLastSequenceError
) -> PeltonError | None:
    """Return why an ending has no effect whose last message was refused; None if that very message is stored.

    It is when a publish was repeated: a server checks the condition before it knows the message again.
    """
    last = ending.messages[-1]
    try:
        found = (await backend.call(MsgGet(stream=refused.stream, last_by_subj=only_of(last, ending.once)))).message
    except MessageNotFoundError:
        pass
    except FINAL_ERRORS:
        raise
    except PeltonError as error:
        return error
    else:
        if (found.subject, found.data) == (last.subject, last.data):
            return None
    return AckRejectedError(stream, consumer, ending.ack.seq, "it was settled otherwise meanwhile")


async def withdraw_each(backend: Backend, stream: str, instead: Mapping[int, Replacement]) -> Withdrawn:
    """Withdraw messages one by one, some of them side by side: see `Backend.withdraw`."""
    acks: list[list[PubAck] | None] = []
    wanted = list(instead.items())
    for start in range(0, len(wanted), _AT_ONCE):
        some = (_withdraw(backend, stream, *one) for one in wanted[start : start + _AT_ONCE])
        acks += await asyncio.gather(*some)
    done = [(seq, stored) for seq, stored in zip(instead, acks, strict=True) if stored is not None]
    return Withdrawn(tuple(seq for seq, _ in done), tuple(ack for _, stored in done for ack in stored), tuple(instead))


async def _withdraw(backend: Backend, stream: str, seq: int, instead: Replacement) -> list[PubAck] | None:
    """Store what is to be there instead of a message, then remove that; None if it is left."""
    acks: list[PubAck] = []
    messages = messages_of(instead)
    try:
        for message in messages:
            acks.append(await backend.publish(message.subject, message.data, message.headers))
    except WrongLastSequenceError:
        if not instead.once or len(acks) < len(messages) - 1:
            raise
        return None
    try:
        await backend.call(MsgDelete(stream=stream, seq=seq))
    except ApiError as refused:
        # Whoever had taken it has found what is stored instead, and removed it.
        if not isinstance(refused, MessageNotFoundError) and refused.err_code != _DELETE_FAILED:
            raise
    return acks
