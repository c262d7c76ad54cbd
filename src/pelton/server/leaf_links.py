"""A server as the leaf node of hubs: other NATS servers or clusters, which it connects to again and again.

JetStream stays apart: ``$JS.API``, ``$KV`` and ``$OBJ`` never cross. With a domain, the store is reached as
``$JS.<domain>.API``, and so is that of the hub.

A hub that is away, refuses the credentials, speaks another protocol or leads back to this server stops nothing: the
reason is noted, and it is tried again (:class:`LeafLink`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from pelton.api import ConfigError
from pelton.api.message import long_ack_prefix
from pelton.runtime import Runtime, end_tasks
from pelton.runtime.clock import within
from pelton.server.connection import AccountPort, ServerHost, SharedBuffer
from pelton.server.crossing import AccountCrossing
from pelton.server.identity import ClientRights, Permissions, ServerUser, SubjectRules
from pelton.server.interest import Interest, LeafInterest
from pelton.server.jetstream_api import NATS_VERSION
from pelton.server.leaf import CONNECT_S, LOOP, LeafConnection
from pelton.server.leaf_sources import LeafSources
from pelton.server.settings.options import LeafRemoteConfig
from pelton.server.settings.runtime import client_context
from pelton.server.store_link import StoreLink
from pelton.storage import LeafNote, leafs_noted, note_leafs
from pelton.wire.leaf_protocol import (
    LONGEST_HELLO,
    LOOP_PREFIX,
    PROTOCOL,
    CrossingRules,
    HubHello,
    LeafConnect,
    read_hello,
    sign_with,
)

_log: Final = logging.getLogger("pelton.server")
LEAF_PORT: Final = 7422
_APART: Final = ("$JS.API.>", "$KV.>", "$OBJ.>")
# Each server answers for itself.
_OWN: Final = ("$SYS.>", f"{LOOP_PREFIX}>")
_OF_DOMAIN: Final = ("INFO", "STREAM.>", "CONSUMER.>", "DIRECT.>", "META.>", "SERVER.>", "ACCOUNT.>", "$KV.>", "$OBJ.>")
_LONGEST_PAUSE_S: Final = 30.0
_TAKE_OVER_S: Final = 2.0
# So often other processes are told how the hubs are, if nothing changes.
_TELL_S: Final = 5.0
_NOT_YET: Final = "it has not connected yet"
_NO_TLS: Final = "it offers no TLS: give its leafnodes { tls { ... } }, or leave tls out here"
_SILENT: Final = "it does not greet: it is no NATS server, or it wants TLS first (tls { handshake_first: true })"
_NOT_FIRST: Final = "it does not begin with TLS: leave handshake_first out, or give it in its tls"
_WRONG_PORT: Final = "it is no port for leaf nodes: give that of the hub's leafnodes { listen: ... }"


class LeafAccount(AccountPort, Protocol):
    """An account that may have hubs."""

    link: StoreLink | None
    crossing: AccountCrossing | None
    leaf: LeafInterest | None


class LeafHost(ServerHost, Protocol):
    """A server that may have hubs."""

    id: str

    def new_number(self) -> int: ...


def _stamp(account: LeafAccount) -> object:
    """Return a value that changes when :func:`_derive_interest` may yield something else."""
    link, crossing = account.link, account.crossing
    return link and link.serving.stamp, crossing and crossing.exchange


def _derive_interest(account: LeafAccount, domain: str) -> Iterable[Interest]:
    """Yield what an account's store wants, and other accounts of it."""
    if account.crossing is not None:
        yield from ((subject, "") for subject in account.crossing.exchange.interest(account.name))
    if account.link is None:
        return
    serving = account.link.serving
    subjects, consumers = serving.interest()
    yield from ((subject, "") for subject in subjects)
    long = long_ack_prefix(account.name, domain)
    for path, is_pushed in consumers.items():
        yield from ((f"$JS.ACK.{path}.*.*.*.*.*", ""), (f"{long}{path}.*.*.*.*.>", ""))
        if is_pushed:
            yield f"$JS.FC.{path}.*", ""
    yield from serving.others()
    if domain:
        yield from ((f"$JS.{domain}.API.{suffix}", "") for suffix in _OF_DOMAIN)
        yield "$JS.SNAPSHOT.>", ""


class LeafLink:
    """The way to one hub, which is connected to again and again. ``reason`` is why it is not, "" while it is."""

    def __init__(
        self,
        host: LeafHost,
        shared: SharedBuffer,
        config: LeafRemoteConfig,
        account: LeafAccount,
        interest: LeafInterest,
        runtime: Runtime,
        introduction: Callable[[], LeafConnect],
    ) -> None:
        self._host = host
        self._shared = shared
        self.config: LeafRemoteConfig = config
        self.account: LeafAccount = account
        self.interest: LeafInterest = interest
        self._runtime = runtime
        self._introduction = introduction
        self.url: str = shown_url(config.urls[0])
        self.reason: str = _NOT_YET
        self.connects: int = 0
        self._connected_ns = self._failures = 0
        self.connection: LeafConnection | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, in the background."""
        self._task = self._runtime.spawn(self._run(), f"pelton is a leaf of {self.url}")

    async def close(self) -> None:
        """Leave the hub. Idempotent."""
        await end_tasks(self._task)
        if self.connection is not None:
            self.connection.close("Server Shutdown")

    @property
    def is_open(self) -> bool:
        """Whether interest is shared."""
        return self.connection is not None and self.connection.state == "open"

    def look(self, now: float) -> None:
        """Check what only time tells."""
        if self.connection is not None:
            self.connection.look(now)

    def on_open(self, connection: LeafConnection) -> None:
        """Note that interest is shared from now on."""
        self.reason = ""
        self.connects += 1
        self._connected_ns, self._failures = self._runtime.clock.now(), 0
        hub = connection.hub
        _log.info("account %r is a leaf of %s (%s)", self.account.name, self.url, hub.server_name)

    def note(self) -> LeafNote:
        """Return what other processes are told of the hub."""
        hub, now = self.connection, self._runtime.clock.now()
        note = LeafNote(url=self.url, domain=self._host.settings.domain, pid=os.getpid(), told_ns=now)
        if hub is None or not self.is_open:
            return replace(note, reason=self.reason, attempts=self._failures)
        return replace(
            note,
            connected_ns=self._connected_ns,
            rtt=hub.rtt or 0.0,
            in_msgs=hub.in_msgs,
            in_bytes=hub.in_bytes,
            out_msgs=hub.out_msgs,
            out_bytes=hub.out_bytes,
        )

    async def _run(self) -> None:
        failures = 0
        while True:
            url = self.config.urls[failures % len(self.config.urls)]
            self.url, before, opened = shown_url(url), self.reason, self.connects
            try:
                reason = await self._stay(url)
            except (OSError, ValueError) as error:
                reason = str(error) or "it does not answer"
            failures = 1 if self.connects > opened else failures + 1
            self.reason, self._failures = reason, failures
            if self.reason != before:
                _log.warning("account %r is no leaf of %s: %s", self.account.name, self.url, self.reason)
            # Another process of the store is its leaf node: this one takes over soon after it ends.
            longest = _TAKE_OVER_S if reason == LOOP else _LONGEST_PAUSE_S
            pause = min(self.config.reconnect * 2 ** min(failures - 1, 8), longest)
            await self._runtime.clock.sleep(pause * (0.75 + self._runtime.random.random() / 4))

    async def _stay(self, url: str) -> str:
        """Connect, and return why the connection has ended. Raises OSError, ConfigError, TimeoutError."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_end(reason: str) -> None:
            if not ended.done():
                ended.set_result(reason)

        self.connection = await within(self._runtime.clock, CONNECT_S, self._open(url, on_end))
        try:
            return await ended
        finally:
            # Waiting for its end may have been cancelled, and its end with that.
            self.connection.close("Server Shutdown")
            self.connection = None

    async def _open(self, url: str, on_end: Callable[[str], None]) -> LeafConnection:
        loop, parts, tls = asyncio.get_running_loop(), urlsplit(url), self.config.tls
        host, port = parts.hostname or "", parts.port or LEAF_PORT
        first = client_context(tls) if tls is not None and tls.handshake_first else None
        try:
            # The transport is closed if this is cancelled.
            transport, greeting = await loop.create_connection(_Greeting, host, port, ssl=first)
        except ssl.SSLError as error:
            raise ConfigError(_NOT_FIRST if error.reason == "WRONG_VERSION_NUMBER" else str(error)) from None
        try:
            hub = await greeting.hello
            if hub.leafnode_urls is None or not hub.client_id:
                raise ConfigError(_WRONG_PORT)
            if any(one.hub.server_id == hub.server_id for one in self.interest.hubs):
                # It would leave the connection that another remote of this account has.
                raise ConfigError(LOOP)
            options = credentials_for(self.config, url, hub.nonce, self._introduction())
            connection = LeafConnection(self._host, self._shared, self._host.new_number(), self, hub, options, on_end)
            is_secret = hub.tls_required or parts.scheme == "tls" or tls is not None
            if is_secret and not (first or hub.tls_required or hub.tls_available):
                raise ConfigError(_NO_TLS)
            if is_secret and first is None:
                # What was sent before TLS may be anybody's.
                if greeting.rest:
                    raise ConfigError("it goes on in plain text, although it wants TLS")
                secret = await loop.start_tls(transport, connection, client_context(tls), server_hostname=host)
                assert secret is not None
                transport = secret
        except BaseException:
            transport.abort()
            raise
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if greeting.rest:
            connection.receive(greeting.rest)
        return connection

    def rights(self, hub: HubHello) -> ClientRights:
        """Return what may cross: what the hub and the settings allow, and JetStream stays apart."""
        own = self._host.settings.domain
        out = (*self.config.deny_exports, *_APART, *_OWN, *((f"$JS.{own}.API.>",) if own else ()))
        into = (*self.config.deny_imports, *_APART, *_OWN)
        permissions = Permissions(publish=_rules(hub.export, out), subscribe=_rules(hub.import_rules, into))
        return ClientRights(ServerUser(account=self.account.name, permissions=permissions))


class LeafLinks:
    """The ways to the hubs of a server."""

    def __init__(self, host: LeafHost, shared: SharedBuffer, runtime: Runtime) -> None:
        self._host = host
        self._shared = shared
        self._runtime = runtime
        self.all: list[LeafLink] = []
        self._sources: list[LeafSources] = []
        self._told: dict[str, tuple[float, list[str]]] = {}

    @property
    def open_links(self) -> list[LeafLink]:
        """Those that share interest now."""
        return [link for link in self.all if link.is_open]

    def start(self, accounts: Mapping[str, LeafAccount]) -> None:
        """Connect to the hubs of all accounts, in the background."""
        settings = self._host.settings
        for config in settings.leaf_remotes:
            account = accounts[config.account]
            if account.leaf is None:
                derive, loop = partial(_derive_interest, account, settings.domain), self._loop_subject(account)
                account.leaf = LeafInterest(derive, partial(_stamp, account), loop)
                sources = LeafSources(account, self._runtime)
                account.leaf.on_refresh, account.leaf.on_hubs = sources.look, sources.hubs_changed
                self._sources.append(sources)
                account.leaf.refresh()
            introduce = partial(self._introduction, account)
            self.all.append(LeafLink(self._host, self._shared, config, account, account.leaf, self._runtime, introduce))
            self.all[-1].start()

    def _introduction(self, account: LeafAccount) -> LeafConnect:
        host = self._host
        return LeafConnect(
            version=NATS_VERSION,
            server_id=host.id,
            name=host.name,
            cluster=host.name,
            domain=host.settings.domain,
            headers=True,
            jetstream=account.link is not None,
            compress_mode="off",
            remote_account=account.name,
            protocol=PROTOCOL,
        )

    def _loop_subject(self, account: LeafAccount) -> str:
        """Return the subject that shows that a hub leads back: first of the store, then of this process."""
        said = [self._host.id]
        if account.link is not None:
            # A copy of a store is another one.
            path = os.path.realpath(self._host.settings.stores[account.name].path)
            said = [account.link.serving.store_id(), socket.gethostname(), path]
        began = f"{self._host.clock.now():019}{self._host.new_nonce()}"
        return f"{LOOP_PREFIX}{sha256(chr(10).join(said).encode()).hexdigest()[:22]}.{began}"

    def look(self, now: float) -> None:
        """Check what only time tells."""
        for link in self.all:
            link.interest.refresh()
            link.look(now)
        for account in {link.account.name for link in self.all}:
            self._tell(account, now)

    def _tell(self, account: str, now: float) -> None:
        """Note beside an account's store how its hubs are, for other processes."""
        links, store = (
            [link for link in self.all if link.account.name == account],
            self._host.settings.stores.get(account),
        )
        states = [link.reason for link in links]
        told, before = self._told.get(account, (float("-inf"), []))
        # Of several processes the one that is connected tells.
        is_other = all(one in (LOOP, _NOT_YET) for one in states)
        if store is None or is_other or (states == before and now - told < _TELL_S):
            return
        self._told[account] = now, states
        note_leafs(store.path, [link.note() for link in links])

    async def close(self) -> None:
        """Leave all hubs."""
        for sources in self._sources:
            await sources.close()
        for link in self.all:
            await link.close()
        for path in [self._host.settings.stores[account].path for account in self._told]:
            # Another process may have taken over.
            if all(one.pid == os.getpid() for one in leafs_noted(path)):
                note_leafs(path, ())


def _rules(said: CrossingRules | None, denied: tuple[str, ...]) -> SubjectRules:
    return SubjectRules(None, denied) if said is None else SubjectRules(said.allow, (*(said.deny or ()), *denied))


class _Greeting(asyncio.Protocol):
    """Reads what a hub says of itself, and what comes behind that (``rest``). ``hello`` may fail: ConfigError."""

    def __init__(self) -> None:
        self.hello: asyncio.Future[HubHello] = asyncio.get_running_loop().create_future()
        # Who waits for it may have been cancelled.
        self.hello.add_done_callback(lambda hello: hello.cancelled() or hello.exception())
        self.rest = b""

    def data_received(self, data: bytes) -> None:
        self.rest += data
        if self.hello.done():
            return
        if b"\n" not in self.rest:
            if len(self.rest) > LONGEST_HELLO:
                self.hello.set_exception(ConfigError(_SILENT))
            return
        line, _, self.rest = self.rest.partition(b"\n")
        hub = read_hello(line[len(b"INFO") :]) if line.startswith(b"INFO ") else None
        if hub is None:
            self.hello.set_exception(ConfigError("it is no NATS server, or speaks another protocol"))
        else:
            self.hello.set_result(hub)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.hello.done():
            self.hello.set_exception(error or ConfigError(_SILENT))


def shown_url(url: str) -> str:
    """Return an address without its user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


# --- what shows the hub who this server is

_CREDS: Final = re.compile(r"-{3,}BEGIN [A-Z ]+-{3,}\s+([\w.+/=-]+)\s+-{3,}END")


def credentials_for(config: LeafRemoteConfig, url: str, nonce: str, about: LeafConnect) -> LeafConnect:
    """Return ``about`` with what proves who this server is: read anew each time. Raises ConfigError."""
    about.deny_pub = config.deny_imports
    parts = urlsplit(url)
    if config.credentials:
        found = _CREDS.findall(_read(config.credentials))
        if len(found) != 2:
            raise ConfigError(f"the credentials {config.credentials!r} hold no user JWT and nkey seed")
        about.jwt = found[0]
        about.sig = _sign(found[1], nonce)[1]
    elif config.nkey:
        text = config.nkey if config.nkey.startswith("SU") else _read(config.nkey).strip()
        about.nkey, about.sig = _sign(text, nonce)
    elif parts.username is not None:
        about.user, about.password = unquote(parts.username), unquote(parts.password or "")
    return about


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the credentials {path!r} cannot be read: {error}") from None


def _sign(seed: str, nonce: str) -> tuple[str, str]:
    """Return the public key of a seed, and its signature of what the hub has sent. Raises ConfigError."""
    try:
        signed = sign_with(seed, nonce.encode())
    except ModuleNotFoundError:
        raise ConfigError("credentials and nkeys need PyNaCl: pip install 'pelton[serve]'") from None
    if signed is None:
        raise ConfigError("the credentials hold no valid seed of a user's nkey (SU...)")
    return signed
