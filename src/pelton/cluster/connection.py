"""One connection to a cluster: requests and their replies, and what happens to both when it breaks.

Design: nats-py keeps the connection and remakes it when it is lost (``client.py``); here requests get their
replies through one subscription, any number in flight. Every wait is bounded:

- The connection breaks: every waiting caller is notified at once (:class:`Interrupted`), because a reply that
  was on its way is lost.
- Our server is well and another one, which had our request, died: no reply comes, and after ``_SILENCE_S`` a
  caller whose request may be repeated is notified (:class:`Silent`). A request that may not be repeated is
  answered within the patience of the settings, or fails.
- A server closes the connection for good, because the credentials have expired: the next request makes a new
  one, and fails with the server's refusal if that is refused too.

Whether to retry depends on the request, so the caller decides; ``api_calls.py`` does it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from math import inf
from typing import Final, NamedTuple

import nats.errors

from pelton.api import (
    ConfigError,
    JetStreamMissingError,
    Outgoing,
    PeltonError,
    ServerPermissionError,
    ServerRefusedError,
    ServerTimeoutError,
    ServerUnreachableError,
    StoreClosedError,
    StoreForkedError,
    WrongLoopError,
    from_reply,
)
from pelton.api.error_table import ERRORS
from pelton.cluster.client import NO_RESPONDERS, NatsClient, status_of
from pelton.cluster.settings import ClusterSettings
from pelton.runtime import Clock, Home, Runtime, Signal, interruptible

_log: Final = logging.getLogger("pelton.cluster")
_SAME_AGAIN_S: Final = 60.0
_MOST: Final = 64


class ComplaintLog:
    """The log of one connection: the same text once a minute, until the connection is back."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._logged: dict[str, float] = {}

    def add(self, error: Exception) -> None:
        """Log an error, unless it was just logged."""
        now, text = self._clock.monotonic(), str(error)
        if now - self._logged.get(text, -inf) < _SAME_AGAIN_S:
            return
        if len(self._logged) >= _MOST:
            self._logged.clear()
        self._logged[text] = now
        _log.warning("cluster %s: %s", self._name, error, extra={"store": self._name})

    def forget(self) -> None:
        """Forget what was logged, because the connection is back: the next error is news."""
        self._logged.clear()


class LoopGuard:
    """The process that made a connection, and the event loop that used it first; ``name`` is for errors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._home = Home()
        self._pid = os.getpid()
        self.is_closed = False

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy of its parent's connection."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise WrongLoopError on another event loop, StoreForkedError in a forked child."""
        if self._home.is_elsewhere:
            if self.is_inherited:
                raise StoreForkedError(self._name)
            if self.is_closed:
                raise StoreClosedError(self._name)
            raise WrongLoopError(self._name, "that one has ended" if self._home.is_over else "")

    def check_loop(self) -> None:
        """Raise WrongLoopError on another event loop; anything closed or inherited raises its own error."""
        if self._home.is_elsewhere and not (self.is_inherited or self.is_closed):
            self.check()


# --- connecting for the first time, and reporting clearly why it failed

_CONNECT_S: Final = 5.0
_UNHEARD: Final = 2 / 3
"""For this share of the patience, and at most ``_CONNECT_S``, a server may be silent when it is connected to."""
_PAUSE_S: Final = 0.1
_PING_S: Final = 10
_FOR_EVER: Final = -1
_OLDEST: Final = (2, 10)
_REFUSED: Final = ("authorization", "authentication", "account", "credentials", "certificate", "tls", "ssl", "expired")
_DENIED: Final = "permissions violation for "

Callback = Callable[[], Awaitable[None]]


async def connect_client(
    client: NatsClient,
    settings: ClusterSettings,
    complained: Callable[[Exception], Awaitable[None]],
    lost: Callback,
    back: Callback,
    complaints: Sequence[Exception],
) -> None:
    """Connect a client to any server of a cluster, which stays connected from then on.

    Raises ServerUnreachableError, ServerRefusedError, JetStreamMissingError for a server that is too old.
    """
    silence = min(_CONNECT_S, settings.patience * _UNHEARD)
    try:
        connecting = client.connect(
            servers=list(settings.servers),
            name="pelton",
            connect_timeout=silence,  # type: ignore[arg-type]  # seconds, a fraction will do
            ping_interval=_PING_S,
            # For the first connection; a lost one is retried any number of times.
            max_reconnect_attempts=1,
            reconnect_time_wait=_PAUSE_S,  # type: ignore[arg-type]  # seconds to sleep, a fraction will do
            inbox_prefix=settings.inbox_prefix,
            error_cb=complained,
            disconnected_cb=lost,
            reconnected_cb=back,
            closed_cb=back,
            **settings.login.arguments(),
        )
        await _wait_for(client, settings, silence, connecting)
    except (OSError, nats.errors.Error, TimeoutError) as error:
        await client.abandon()
        raise refusal(settings.name, complaints, str(error)) from None
    except BaseException:
        # It may be connected by now, and would connect again if it were only cut.
        await client.abandon()
        raise
    client.options["max_reconnect_attempts"] = _FOR_EVER
    version = client.connected_server_version
    if (version.major, version.minor) < _OLDEST:
        await client.abandon()
        reason = f"its version is {version.major}.{version.minor}, and 2.10 is the oldest supported"
        raise JetStreamMissingError(settings.name, reason)


async def _wait_for(client: NatsClient, settings: ClusterSettings, silence: float, connecting: Awaitable[None]) -> None:
    """Wait until a client is connected; ``silence`` (seconds): for each server's first word. Raises TimeoutError."""
    waits, began = min(silence * len(settings.servers), settings.patience), asyncio.get_running_loop().time()

    def be_patient() -> None:
        nonlocal waits
        # On a slow link it takes several round trips more, but not until the first word.
        waits = settings.patience
        deadline.reschedule(began + waits)

    try:
        async with asyncio.timeout_at(began + waits) as deadline:
            client.on_heard = be_patient
            await interruptible(connecting)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {waits:g} s") from None
    finally:
        client.on_heard = _nothing


def _nothing() -> None:
    return None


def refusal(name: str, complaints: Sequence[Exception], otherwise: str) -> PeltonError:
    """Return why a cluster refuses the connection, from the errors of its servers and the network."""
    for complaint in complaints:
        # A server that refuses may also cut the connection: its refusal tells more.
        text = str(complaint).removeprefix("nats: ")
        if isinstance(complaint, ssl.SSLError) or any(word in text.lower() for word in _REFUSED):
            return ServerRefusedError(name, text)
    told = str(complaints[-1]) if complaints else ""
    return ServerUnreachableError(name, told or otherwise)


def refused_subject(error: Exception) -> str | None:
    """Return the subject of a request or subscription that a server refused for lack of permission."""
    _, found, rest = str(error).partition(_DENIED)
    return rest.split('"')[1] if found and '"' in rest else None


_SILENCE_S: Final = 5.0
_FIRST_S: Final = 1.0
_SWEEP_S: Final = 1.0
_BAD_SUBJECT: Final = re.compile(r"[\s\0]", re.ASCII)


class Interrupted(Exception):  # noqa: N818 - never leaves this room
    """The connection was lost while waiting for a reply."""


class NotSent(Interrupted):
    """There was no connection to send it on: repeating any request is harmless."""


class Silent(Interrupted):
    """The connection is up, and no reply came for so long that none will."""


class Answer(NamedTuple):
    """A reply: the header block, None for most, and the data."""

    block: bytes | None
    data: bytes

    @property
    def status(self) -> int:
        """The status of a server's own message; 0 for any other."""
        return 0 if self.block is None else status_of(self.block).code

    @property
    def text(self) -> str:
        """The text of a server's own message."""
        return status_of(self.block).text

    @property
    def is_unheard(self) -> bool:
        """Whether the subject of the request has no responders."""
        return self.status == NO_RESPONDERS


class _Waiting(NamedTuple):
    future: asyncio.Future[Answer]
    subject: str
    until: float
    take: Callable[[Answer], bool] | None = None


class Connection:
    """A connection that is made on first use, and remade when it breaks; belongs to one event loop."""

    def __init__(self, settings: ClusterSettings, runtime: Runtime) -> None:
        self.settings = settings
        self.clock: Clock = runtime.clock
        self._new_id = runtime.ids.new
        self.belonging: LoopGuard = LoopGuard(settings.name)
        self._opening = asyncio.Lock()
        self._client: NatsClient | None = None
        self._closed = False
        self._complaints: list[Exception] = []
        self._complaint_log = ComplaintLog(settings.name, runtime.clock)
        self._waiting: dict[str, _Waiting] = {}
        self._numbers = count()
        self._inbox = ""
        self._sweeping = False
        self._changed = Signal()
        self._losses = 0
        self.restarted_at: float = float("-inf")
        self._lost_at: float = self.restarted_at
        self._server_id = ""
        self.on_lost: list[Callable[[], None]] = []
        self.on_denied: list[Callable[[str, PeltonError], None]] = []

    # --- life

    async def client(self) -> NatsClient:
        """Return a client that was connected at least once; raises StoreError."""
        client = self._client
        if client is None or client.is_closed or self._closed:
            async with self._opening:
                if self._closed:
                    raise StoreClosedError(self.settings.name)
                if self._client is None or self._client.is_closed:
                    self._client = await self._connect()
                client = self._client
        return client

    async def close(self) -> None:
        """Close for good; waiting callers get StoreClosedError. Idempotent."""
        if self._closed:
            return
        self._closed = self.belonging.is_closed = True
        if self._client is not None:
            await self._client.finish()
        self._fail_waiting(StoreClosedError(self.settings.name))
        self._tell_lost()
        client, self._client = self._client, None
        if client is not None:
            await client.abandon()
        self._changed.notify()

    async def _connect(self) -> NatsClient:
        self._complaints.clear()
        client = NatsClient(insists_on_tls=self.settings.insists_on_tls, dial=self.settings.dial)
        await connect_client(client, self.settings, self._on_complaint, self._on_lost, self._back, self._complaints)
        self._inbox = f"{self.settings.inbox_prefix}.{self._new_id()}."
        try:
            await client.listen(f"{self._inbox}*", self._on_reply)
            await self._check_jetstream(client)
            if self._closed:
                raise StoreClosedError(self.settings.name)
        except BaseException:
            await client.abandon()
            raise
        self._note_server(client)
        return client

    async def _check_jetstream(self, client: NatsClient) -> None:
        try:
            answer = await self._first_answer(client)
        except Interrupted:
            said = [*self._complaints, *([client.last_error] if client.last_error else [])]
            raise refusal(self.settings.name, said, "it does not answer") from None
        if answer.is_unheard or b'"err_code":10039' in answer.data or b'"err_code":10076' in answer.data:
            where = "" if self.settings.api_prefix == "$JS.API" else f"there is no answer on {self.settings.api_prefix}"
            raise JetStreamMissingError(self.settings.name, where)

    async def _first_answer(self, client: NatsClient) -> Answer:
        """Ask until there is a reply: a cluster that has just started sends none before it has a leader."""
        end = self._retry()
        while True:
            until = min(self.clock.monotonic() + _FIRST_S, end)
            try:
                return await self._send(client, f"{self.settings.api_prefix}.INFO", b"", None, until)
            except Silent:
                if until >= end:
                    raise

    async def _on_complaint(self, error: Exception) -> None:
        self._complaints[:] = [*self._complaints[-3:], error]
        if (subject := refused_subject(error)) is not None:
            self._deny(subject, ServerPermissionError(self.settings.name, str(error).removeprefix("nats: ")))
        if self._client is not None:
            self._complaint_log.add(error)

    def _deny(self, subject: str, error: ServerPermissionError) -> None:
        """Fail the callers of a refused request; if our inbox is refused, that is all of them."""
        for tell in list(self.on_denied):
            tell(subject, error)
        own = self._inbox.lower() + "*"
        for token, waiting in list(self._waiting.items()):
            if subject in (own, waiting.subject.lower()):
                self._waiting.pop(token)
                _fail(waiting.future, error)

    async def _on_lost(self) -> None:
        self._losses += 1
        self._lost_at = self.clock.boottime()
        self._fail_waiting(Interrupted())
        self._tell_lost()
        self._changed.notify()

    def _tell_lost(self) -> None:
        for tell in list(self.on_lost):
            tell()

    async def _back(self) -> None:
        self._note_server(self._client)
        self._complaint_log.forget()
        self._changed.notify()

    def _note_server(self, client: NatsClient | None) -> None:
        """Note whether the server was started anew: one that is alone keeps its id for as long as it runs."""
        told = client._server_info if client is not None else {}
        before, self._server_id = self._server_id, str(told.get("server_id", self._server_id))
        if before not in ("", self._server_id) and not self.is_clustered:
            self.restarted_at = self._lost_at

    def _fail_waiting(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            _fail(one.future, error)

    async def until_connected(self, end: float) -> None:
        """Wait for the connection, until ``end`` on the monotonic clock; raises ServerUnreachableError."""
        while True:
            seen = self._changed.generation
            client = await self.client()
            if client.is_connected:
                return
            left = end - self.clock.monotonic()
            if left <= 0:
                raise self.unreachable()
            await self._changed.wait_at_most(self.clock, left, seen)

    def unreachable(self) -> PeltonError:
        """Return the error for a connection that is lost and is not restored."""
        return refusal(self.settings.name, self._complaints, "the connection was lost")

    # --- requests

    @property
    def is_clustered(self) -> bool:
        """Whether our server is one of several."""
        return self._client is not None and bool(self._client._server_info.get("cluster"))

    def new_inbox(self) -> str:
        """Return a unique subject."""
        return f"{self.settings.inbox_prefix}.{self._new_id()}"

    async def ask(self, subject: str, data: bytes, block: bytes | None = None, *, again: bool = False) -> Answer:
        """Return the reply to one request; raises Interrupted, or Silent if it may be sent ``again``.

        Raises ServerTimeoutError if it may not, and as :meth:`begin`.
        """
        until = self.clock.monotonic() + _SILENCE_S if again else self._retry()
        try:
            return await self.begin(subject, data, block, until)
        except Silent:
            if again:
                raise
            raise self.no_answer() from None

    def try_send(self, message: Outgoing, *, again: bool) -> asyncio.Future[Answer] | None:
        """Send a request at once and return a future of its reply, as :meth:`ask`; None if that is not possible now."""
        client = self._client
        if client is None or client.is_closed or not (client.is_connected and client.has_room):
            return None
        until = self.clock.monotonic() + _SILENCE_S if again else self._retry()
        return self._send(client, message.subject, message.data, message.headers, until)

    async def room(self) -> None:
        """Return when there may be room to send, or the connection is lost; raises StoreError."""
        await self._ready()

    async def gather(self, subject: str, data: bytes, take: Callable[[Answer], bool]) -> None:
        """Pass every reply to one request to ``take``, until it returns that it was the last; raises Interrupted."""
        client = await self._ready()
        await self._send(client, subject, data, None, self.clock.monotonic() + _SILENCE_S, take)

    async def ask_all(self, requests: Sequence[Outgoing]) -> list[Answer | Exception]:
        """Send requests in order, all in flight at once; one entry each: its reply, or why there is none."""
        until = self.clock.monotonic() + _SILENCE_S
        futures: list[asyncio.Future[Answer]] = []
        refused: list[Exception] = []
        losses = self._losses
        for request in requests:
            try:
                client = await self._ready()
                if futures and self._losses != losses:
                    # It broke while there was no room: earlier requests are lost with it.
                    raise NotSent
                futures.append(self._send(client, request.subject, request.data, request.headers, until))
            except (PeltonError, Interrupted) as error:
                # Later requests must not overtake it.
                refused = [error] * (len(requests) - len(futures))
                break
        answers = await asyncio.gather(*futures, return_exceptions=True)
        return [*(_as_answer(answer) for answer in answers), *refused]

    async def begin(self, subject: str, data: bytes, block: bytes | None, until: float) -> Answer:
        """Send a request and return its reply; raises Interrupted, StoreError, ConfigError."""
        client = await self._ready()
        return await self._send(client, subject, data, block, until)

    async def is_unheard(self, subject: str, seconds: int) -> bool:
        """Whether a subject has no subscribers, as far as our server knows; raises Interrupted, StoreError."""
        client = await self._ready()
        answer = self._send(client, subject, b"", None, self.clock.monotonic() + seconds)
        try:
            # A server reports no responders before it answers the ping behind the request.
            await client.flush(seconds)
            return answer.done() and answer.result().is_unheard
        finally:
            answer.cancel()

    async def tell(self, subject: str, data: bytes, reply: str = "", block: bytes | None = None) -> None:
        """Send a message whose reply goes elsewhere; raises Interrupted if there is no connection."""
        client = await self._ready()
        if not client.is_connected:
            raise NotSent
        client.send(subject, reply, data, block)

    def no_answer(self) -> PeltonError:
        """Return the error for a request that was not answered in time."""
        return ServerTimeoutError(self.settings.name, f"no answer for {self.settings.patience:g} s")

    async def _ready(self) -> NatsClient:
        client = self._client
        if client is None or client.is_closed:
            client = await self.client()
        if not client.has_room:
            await client.room()
        return client

    def _retry(self) -> float:
        return self.clock.monotonic() + self.settings.patience

    def _send(
        self,
        client: NatsClient,
        subject: str,
        data: bytes,
        block: bytes | None,
        until: float,
        take: Callable[[Answer], bool] | None = None,
    ) -> asyncio.Future[Answer]:
        if not client.is_connected:
            raise NotSent
        if not subject or _BAD_SUBJECT.search(subject):
            # Names and subjects are checked by the callers; this one would be parsed as other commands.
            raise ConfigError(f"{subject!r} is not a subject: it is empty, or holds white space")
        token = str(next(self._numbers))
        try:
            client.send(subject, self._inbox + token, data, block)
        except nats.errors.MaxPayloadError:
            raise _too_large(client, len(data) + len(block or b"")) from None
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[token] = _Waiting(future, subject, until, take)
        if not self._sweeping:
            self._sweeping = True
            self.clock.call_later(_SWEEP_S, self._sweep)
        return future

    def _on_reply(self, subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        token = subject[len(self._inbox) :]
        waiting = self._waiting.pop(token, None)
        if waiting is None or waiting.future.done():
            return
        answer = Answer(block, data)
        if waiting.take is None or waiting.take(answer):
            waiting.future.set_result(answer)
        else:
            self._waiting[token] = waiting._replace(until=self.clock.monotonic() + _SILENCE_S)

    def _sweep(self) -> None:
        """Time out replies that do not come: one timer for all of them."""
        now = self.clock.monotonic()
        for token, waiting in list(self._waiting.items()):
            if waiting.until <= now or waiting.future.done():
                self._waiting.pop(token)
                _fail(waiting.future, Silent())
        self._sweeping = bool(self._waiting)
        if self._sweeping:
            self.clock.call_later(_SWEEP_S, self._sweep)


def _too_large(client: NatsClient, size: int) -> PeltonError:
    code, err_code, text = ERRORS["JSStreamMessageExceedsMaximumErr"]
    sizes = f"{size} bytes, headers included, and the server takes {client.max_payload} (max_payload)"
    return from_reply(code, err_code, f"{text}: {sizes}")


def _fail(future: asyncio.Future[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Callers that gave up waiting did not ask for it.
        future.exception()


def _as_answer(answer: Answer | BaseException) -> Answer | Exception:
    return answer if isinstance(answer, Answer | Exception) else Interrupted()
