"""One connection to a cluster: requests and their answers, and what becomes of both when it breaks.

The story. nats-py keeps the connection and makes it again when it is lost; here requests get their answers
through one subscription, any number in flight. When the connection breaks, whoever waits is told
(:class:`Interrupted`), because an answer that was on its way is lost: whether to ask again depends on the
question, so the caller decides. ``generation`` of ``connected`` moves with every reconnection.

A connection is made on first use, so that :meth:`pelton.cluster.Cluster.clone` can be called anywhere and
belongs to the loop that uses it first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple

import nats.aio.client
import nats.errors

from pelton.api import (
    ConfigError,
    JetStreamMissingError,
    PeltonError,
    ServerRefusedError,
    ServerTimeoutError,
    ServerUnreachableError,
    StoreClosedError,
    api_error,
    headers,
)
from pelton.cluster.address import ClusterSettings
from pelton.runtime import Runtime, Signal

_log: Final = logging.getLogger("pelton")
_ANSWER_S: Final = 10.0
_CONNECT_S: Final = 2
_PAUSE_S: Final = 0.1
_FOR_EVER: Final = -1
_OLDEST: Final = (2, 10)
_REFUSED: Final = ("authorization", "authentication", "account", "nkey", "credentials", "certificate", "tls")
NO_RESPONDERS: Final = 503


class Interrupted(Exception):  # noqa: N818 - never leaves this room
    """The connection was lost while an answer was awaited."""


class NotSent(Interrupted):
    """There was no connection to send it on: asking again is harmless, whatever it is."""


class Answer(NamedTuple):
    """What came back: ``status`` 0 for an ordinary message, and its text; ``block`` is its header block."""

    status: int
    text: str
    data: bytes
    block: bytes | None = None


class _Block(dict[str, str]):
    """Headers as they came, undecoded: nats-py's own decoding keeps one value of a name."""

    def __init__(self, block: bytes) -> None:
        super().__init__()
        self.block = block


class _Client(nats.aio.client.Client):
    async def _process_headers(self, block: bytes) -> _Block | None:
        return _Block(bytes(block)) if block else None


class _Pairs(dict[str, str]):
    """Headers to send, any number of one name."""

    def __init__(self, block: bytes) -> None:
        super().__init__()
        self._decoded = headers.decode(block)

    def items(self) -> Iterator[tuple[str, str]]:  # type: ignore[override]  # all that nats-py asks of them
        return ((name, value) for name in self._decoded for value in self._decoded.get_all(name))


def block_of(message: Any) -> bytes | None:
    """Return the encoded header block of a nats-py message."""
    found = message.headers
    return None if found is None else found.block


def status_of(block: bytes | None) -> tuple[int, str]:
    """Return status and text of a server's own message; 0 for any other."""
    if block is None or not block[9:12].isdigit():
        return 0, ""
    opening = block.partition(b"\r\n")[0]
    return int(opening[9:12]), opening[13:].decode(errors="replace")


class Connection:
    """A connection that makes itself, and makes itself again."""

    def __init__(self, settings: ClusterSettings, runtime: Runtime) -> None:
        self.settings = settings
        self.clock = runtime.clock
        self._new_id = runtime.ids.new
        self._opening = asyncio.Lock()
        self._client: Any = None
        self._closed = False
        self._complaints: list[Exception] = []
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._taking: dict[str, Callable[[Answer], bool]] = {}
        self._numbers = count()
        self._inbox = ""
        self._changed = Signal()
        self.on_lost: list[Callable[[], None]] = []

    # --- life

    async def client(self) -> Any:
        """Return the nats-py client, connected at least once; raises StoreError."""
        if self._closed:
            raise StoreClosedError(self.settings.name)
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    self._client = await self._connect()
        return self._client

    async def close(self) -> None:
        """Close for good; whoever waits gets StoreClosedError. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._fail_waiting(StoreClosedError(self.settings.name))
        client, self._client = self._client, None
        if client is not None:
            # What is left to say to a server that is gone stays unsaid.
            with suppress(OSError, nats.errors.Error):
                await client.close()
        self._changed.notify()

    async def _connect(self) -> Any:
        client = _Client()
        try:
            await client.connect(
                servers=list(self.settings.servers),
                name="pelton",
                connect_timeout=_CONNECT_S,
                # For the first connection; a lost one is worth any number of attempts.
                max_reconnect_attempts=1,
                reconnect_time_wait=_PAUSE_S,  # type: ignore[arg-type]  # seconds to sleep, a fraction will do
                error_cb=self._complained,
                disconnected_cb=self._lost,
                reconnected_cb=self._back,
                closed_cb=self._back,
            )
        except (OSError, nats.errors.Error, TimeoutError) as error:
            raise self._why(error) from None
        client.options["max_reconnect_attempts"] = _FOR_EVER
        self._inbox = f"{client.new_inbox()}."
        await client.subscribe(f"{self._inbox}*", cb=self._answered, pending_msgs_limit=0, pending_bytes_limit=0)
        await self._check_jetstream(client)
        return client

    async def _check_jetstream(self, client: Any) -> None:
        version = client.connected_server_version
        try:
            if (version.major, version.minor) < _OLDEST:
                reason = f"its version is {version.major}.{version.minor}, and 2.10 is the oldest that will do"
                raise JetStreamMissingError(self.settings.name, reason)
            future = await self._send(client, f"{self.settings.api_prefix}.INFO", b"", None)
            async with asyncio.timeout(_ANSWER_S):
                answer = await future
            if answer.status == NO_RESPONDERS or b'"err_code":10039' in answer.data:
                raise JetStreamMissingError(self.settings.name)
        except TimeoutError:
            raise ServerTimeoutError(self.settings.name, self._reason("it does not answer")) from None
        except BaseException:
            await client.close()
            raise

    def _why(self, error: Exception) -> PeltonError:
        # A server that refuses may also cut the connection: the refusal says more.
        for complaint in self._complaints:
            if any(word in str(complaint).lower() for word in _REFUSED):
                return ServerRefusedError(self.settings.name, str(complaint))
        return ServerUnreachableError(self.settings.name, self._reason(str(error)))

    def _reason(self, default: str) -> str:
        return str(self._complaints[-1]) if self._complaints else default

    async def _complained(self, error: Exception) -> None:
        self._complaints = [*self._complaints[-3:], error]
        if self._client is not None:
            _log.warning("cluster %s: %s", self.settings.name, error)

    async def _lost(self) -> None:
        self._fail_waiting(Interrupted())
        for tell in list(self.on_lost):
            tell()
        self._changed.notify()

    async def _back(self) -> None:
        self._complaints.clear()
        self._changed.notify()

    def _fail_waiting(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
                # Who gave up waiting does not ask any more.
                future.exception()

    async def until_connected(self, end: float) -> None:
        """Wait for the connection, until ``end`` on the monotonic clock; raises ServerUnreachableError."""
        while True:
            seen = self._changed.generation
            client = await self.client()
            if client.is_connected:
                return
            if client.is_closed:
                raise self._why(ConnectionError("the connection is closed"))
            left = end - self.clock.monotonic()
            if left <= 0:
                raise self._why(ConnectionError("the connection was lost"))
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait(seen)

    # --- requests

    def new_inbox(self) -> str:
        """Return a subject that nobody else uses."""
        return f"_INBOX.{self._new_id()}"

    async def ask(self, subject: str, data: bytes, block: bytes | None = None) -> Answer:
        """Return the answer to one request; raises Interrupted, ServerTimeoutError."""
        future = await self.begin(subject, data, block)
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await future
        except TimeoutError:
            raise self.no_answer() from None

    async def gather(self, subject: str, data: bytes, take: Callable[[Answer], bool]) -> None:
        """Hand every answer to one request to ``take``, until it says that this was the last.

        Raises Interrupted; ServerTimeoutError when the next answer does not come in time.
        """
        client = await self.client()
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(_ANSWER_S) as limit:

                def taken(answer: Answer) -> bool:
                    limit.reschedule(now() + _ANSWER_S)
                    return take(answer)

                await (await self._send(client, subject, data, None, taken))
        except TimeoutError:
            raise self.no_answer() from None

    async def ask_all(self, requests: Sequence[tuple[str, bytes, bytes | None]]) -> list[Answer | Exception]:
        """Send requests in order, all in flight at once; one entry each: its answer, or why there is none."""
        futures: list[asyncio.Future[Answer]] = []
        refused: list[Exception] = []
        for subject, data, block in requests:
            try:
                futures.append(await self.begin(subject, data, block))
            except (PeltonError, Interrupted) as error:
                # What follows must not overtake it.
                refused = [error] * (len(requests) - len(futures))
                break
        if futures:
            await asyncio.wait(futures, timeout=_ANSWER_S)
        return [*(self._outcome(future) for future in futures), *refused]

    def _outcome(self, future: asyncio.Future[Answer]) -> Answer | Exception:
        if not future.done():
            future.cancel()
            return self.no_answer()
        error = future.exception()
        if error is None:
            return future.result()
        return error if isinstance(error, Exception) else Interrupted()

    def no_answer(self) -> PeltonError:
        """Return the error for a request that was not answered in time."""
        return ServerTimeoutError(self.settings.name, self._reason(f"no answer for {_ANSWER_S:g} s"))

    async def begin(self, subject: str, data: bytes, block: bytes | None) -> asyncio.Future[Answer]:
        """Send a request, and return the future of its answer."""
        client = self._client if self._client is not None else await self.client()
        return await self._send(client, subject, data, block)

    async def _send(
        self,
        client: Any,
        subject: str,
        data: bytes,
        block: bytes | None,
        take: Callable[[Answer], bool] | None = None,
    ) -> asyncio.Future[Answer]:
        if self._closed:
            raise StoreClosedError(self.settings.name)
        if not client.is_connected:
            # nats-py would keep it and send it some day, when nobody waits for the answer any more.
            raise NotSent
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        token = str(next(self._numbers))
        self._waiting[token] = future
        if take is not None:
            self._taking[token] = take
            future.add_done_callback(lambda _: self._taking.pop(token, None))
        try:
            pairs = None if block is None else _Pairs(block)
            await client.publish(subject, data, reply=self._inbox + token, headers=pairs)
        except BaseException as error:
            self._waiting.pop(token, None)
            raise _public(error, subject, self.settings.name) from None
        return future

    async def _answered(self, message: Any) -> None:
        token = message.subject[len(self._inbox) :]
        future = self._waiting.get(token)
        if future is None or future.done():
            self._waiting.pop(token, None)
            return
        block = block_of(message)
        answer = Answer(*status_of(block), bytes(message.data), block)
        take = self._taking.get(token)
        if take is None or take(answer):
            del self._waiting[token]
            future.set_result(answer)


def _public(error: BaseException, subject: str, name: str) -> BaseException:
    if isinstance(error, nats.errors.MaxPayloadError):
        return api_error("JSStreamMessageExceedsMaximumErr")
    if isinstance(error, nats.errors.BadSubjectError):
        return ConfigError(f"{subject!r} is no subject: it is empty, or holds white space")
    if isinstance(error, nats.errors.BadHeaderError):
        return ConfigError(f"a header cannot be sent to a NATS server: {error}")
    if isinstance(error, nats.errors.OutboundBufferLimitError):
        return NotSent()
    if isinstance(error, nats.errors.Error):
        return ServerUnreachableError(name, str(error))
    return error
