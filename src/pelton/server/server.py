"""The server: accounts, their stores, the clients, and how it ends.

It ends in one of two ways. :meth:`Server.close` stores and acknowledges what has arrived, tells waiting pulls, and
closes all connections. :meth:`Server.lame_duck` lets clients go elsewhere first: it accepts no more, tells those that
are connected, and lets go of them one by one.

**The accounts that a server has, their stores, and the ways between them: by its settings, and by others later.** A
change of settings first opens what is new, which may fail, and leaves everything as it was then. The switch to it is
one step of the event loop: no message meets half of a change. What takes longer is done after it
(:meth:`ServedAccounts.settle`): new stores learn of subscriptions, and those that are not served any more are closed.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from pelton.api import ConfigError, PeltonError, rfc3339
from pelton.engine import Engine, EngineSettings
from pelton.runtime import Clock, Runtime, Timer
from pelton.server.account import ServerAccount
from pelton.server.accounts import AccountResolver
from pelton.server.clients import Client
from pelton.server.connection import LINGER_S, ClientConnection, SharedBuffer
from pelton.server.crossing import AccountCrossing, AccountExchange, MessageTracer
from pelton.server.identity import MAX_ACCOUNT_CONNECTIONS, Authenticator
from pelton.server.jetstream_api import JetStreamService, MissingJetStream, ReplyCompletion
from pelton.server.leaf_links import LeafLinks
from pelton.server.listening import ConfiguredDoor, Listener, introduction, let_in
from pelton.server.monitoring import MonitoringListener, SystemEvents, SystemService
from pelton.server.observed import ClientRoster, Observed
from pelton.server.router import in_portions
from pelton.server.settings import Endpoint, ServerSettings, StoreSettings, WebSocketDoor
from pelton.server.settings.options import GLOBAL_ACCOUNT, AccountConfig, ServerConfig
from pelton.server.settings.runtime import check_apart, check_settings
from pelton.server.store_link import StandbySource, StoreLink
from pelton.server.users import ConfiguredUsers
from pelton.wire import ServerHello, encode_info
from pelton.wire.protocol import server_key


class ServedAccounts:
    """The accounts of a server. ``store_ended`` is called when a store has failed for good."""

    def __init__(
        self,
        server: Observed,
        runtime: Runtime,
        store_ended: Callable[[Exception], None],
        new_token: Callable[[], str],
        open_store: Callable[[EngineSettings], Engine] | None,
    ) -> None:
        self._server = server
        self._open_store = open_store
        self._runtime = runtime
        self._store_ended = store_ended
        self._new_token = new_token
        self._tracer = MessageTracer(server, runtime.random)
        self.by_name: dict[str, ServerAccount] = {}
        self._crossing: AccountCrossing | None = None
        # Since the last change: the accounts that got a store, and the stores that are not served any more.
        self._new: list[ServerAccount] = []
        self._gone: list[StoreLink] = []

    async def change(self, settings: ServerSettings, apply: Callable[[], None] = lambda: None) -> None:
        """Serve the accounts and stores of ``settings`` instead; ``apply`` is called when nothing can fail any more.

        Raises ConfigError, StoreError; then nothing has changed.
        """
        check_apart(settings.stores)
        imports = any(account.imports for account in settings.accounts.values())
        exchange = AccountExchange(settings.accounts.values()) if imports else None
        wanted = filter(None, (GLOBAL_ACCOUNT, settings.system_account, *settings.stores, *settings.accounts))
        accounts = {name: self.by_name.get(name) or self._new_account(name) for name in wanted}
        opened: dict[str, StoreLink] = {}
        try:
            for name, store in settings.stores.items():
                if accounts[name].link is None:
                    opened[name] = self._open_link(accounts[name], store, settings.domain)
                    await opened[name].interest.open()
        except BaseException:
            for link in opened.values():
                await link.close()
            raise
        apply()
        self._gone += [one.link for name, one in self.by_name.items() if one.link and name not in settings.stores]
        self._new += [accounts[name] for name in opened]
        for name in self.by_name.keys() - accounts.keys():
            self.by_name[name].retire()
        self.by_name.clear()
        self.by_name.update(accounts)
        self._connect(exchange)
        for name, account in accounts.items():
            self._set_up(account, settings, opened.get(name))

    async def settle(self) -> None:
        """Tell new stores who subscribes to what, and close those that are not served any more."""
        while self._new:
            await self._new.pop().introduce()
        while self._gone:
            link = self._gone.pop()
            with suppress(PeltonError):
                await link.finish()
            await link.close()

    def _new_account(self, name: str) -> ServerAccount:
        account = ServerAccount(name, self._runtime.random.choice, self._runtime.clock.monotonic)
        account.tracer = self._tracer
        account.services["$SYS"] = SystemService(self._server, name, account.answer, self._runtime)
        return account

    def _open_link(self, account: ServerAccount, store: StoreSettings, domain: str) -> StoreLink:
        settings = EngineSettings(path=store.path, sync=store.sync, limits=store.limits, key=store.key)
        engine = self._open_store(settings) if self._open_store else Engine(settings, self._runtime)
        link = StoreLink(engine, account, self._runtime, domain)
        link.standbys = StandbySource(store.path, store.key, account, self._runtime, self._server.settings.max_payload)
        engine.on_end(lambda error: link.standbys.after_copying(lambda: self._store_ended(error)))
        return link

    def _connect(self, exchange: AccountExchange | None) -> None:
        """Let messages cross between accounts that import from each other."""
        if exchange is None:
            self._crossing = None
        elif self._crossing is None:
            clock = self._runtime.clock
            self._crossing = AccountCrossing(exchange, self.by_name, clock, self._new_token, self._server.name)
        else:
            self._crossing.exchange = exchange

    def _set_up(self, account: ServerAccount, settings: ServerSettings, opened: StoreLink | None) -> None:
        """Give an account what the settings say; ``opened`` is its store if it was none before."""
        config = settings.accounts.get(account.name, AccountConfig(name=account.name))
        store = settings.stores.get(account.name)
        account.limits, account.crossing, account.tracing = config.limits, self._crossing, config.tracing
        if opened is not None:
            completion = ReplyCompletion(self._server.name, settings.domain, partial(self._config, account.name))
            account.services |= {"$JS": JetStreamService(opened, completion), "$PELTON": opened.standbys}
        elif store is None:
            account.services = {"$SYS": account.services["$SYS"]}
            if settings.stores:
                purge = self._purge if account.name == settings.system_account else None
                account.services["$JS"] = MissingJetStream(account, purge)
        elif account.link is not None:
            account.link.engine.limit(store.limits)
        account.attach(opened or (account.link if store is not None else None))

    def _config(self, name: str) -> AccountConfig:
        return self._server.settings.accounts.get(name) or AccountConfig(name=name)

    def _purge(self, name: str, done: Callable[[], None]) -> None:
        """Remove the streams of an account (``nats server account purge``), and call back."""
        account = self.by_name.get(name)

        async def purge() -> None:
            if account is not None and account.link is not None:
                await account.link.purge()
            done()

        self._runtime.spawn(purge(), f"pelton purges account {name}")

    def look(self) -> None:
        """Do what only time tells."""
        if self._crossing is not None:
            self._crossing.look()
        for account in list(self.by_name.values()):
            if account.link is not None:
                account.link.interest.look_at_pushes()

    async def finish(self) -> None:
        """Answer everything that clients have published."""
        for account in list(self.by_name.values()):
            account.finish()
            if account.link is not None:
                with suppress(PeltonError):
                    await account.link.finish()

    async def close(self) -> None:
        for account in list(self.by_name.values()):
            account.forget()
            if account.link is not None:
                await account.link.close()


_LOOKS: Final = 10
# So many clients are looked at or cut in one round of the event loop when settings have changed.
_RECONSIDERED_AT_ONCE: Final = 16
_LONGEST_LOOK_S: Final = 1.0
_TOO_MANY: Final = "maximum connections exceeded"
_SHUTDOWN: Final = "Server Shutdown"
_NONCE_BYTES: Final = 11
# The last look at what clients have sent, before the server ends.
_LAST_READ_S: Final = 0.25
_QUIET_ROUNDS: Final = 3
_LOOK_AT_CLOSING_S: Final = 0.01
_KEY_BYTES: Final = 32
# JetStream, archives of streams in its binary format, and one that only clusters have.
_JETSTREAM_FLAGS: Final = 7


class Server:
    """A NATS server on the stores of its accounts; belongs to the event loop that starts it.

    ``settings`` say where it listens, and what it grants. ``authenticator`` decides who is let in: without one,
    everybody is. `pelton serve` has one that reads users, nkeys and JWTs from a configuration file. ``failure`` is the
    error of a store that has failed for good, or None. ``resolver`` takes the accounts that an operator pushes.
    ``open_store`` opens a store in another way than by its path.
    """

    settings: ServerSettings
    begun: int
    configured: int
    reloads: int

    def __init__(
        self,
        settings: ServerSettings,
        runtime: Runtime,
        authenticator: Authenticator | None = None,
        open_store: Callable[[EngineSettings], Engine] | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = runtime.clock
        self.authenticator: Authenticator = authenticator or ConfiguredDoor(
            ConfiguredUsers(ServerConfig()), runtime.clock
        )
        self._shared = SharedBuffer()
        self.id: str = server_key(runtime.random.randbytes(_KEY_BYTES))
        self.name: str = settings.server_name or self.id
        self._runtime = runtime
        self.begun = self.configured = runtime.clock.now()
        self.reloads = 0
        self._monitoring: MonitoringListener | None = None
        self._events = SystemEvents(self, lambda: self._accounts.by_name.get(settings.system_account), runtime)
        self._accounts = ServedAccounts(self, runtime, self._store_ended, self.new_nonce, open_store)
        self.leafs: LeafLinks = LeafLinks(self, self._shared, runtime)
        self._changing = asyncio.Lock()
        self.roster: ClientRoster = ClientRoster(settings.max_closed_clients)
        # Those whose TLS or WebSocket is not ready yet.
        self._shaking: set[socket.socket] = set()
        self._numbers = self._told = 0
        self._listeners: list[Listener] = []
        self._websocket: Listener | None = None
        self._look_timer: Timer | None = None
        self._is_lame = False
        self._closed = False
        self.failure: Exception | None = None
        self.resolver: AccountResolver | None = None
        self._on_failure: list[Callable[[], None]] = []
        self._on_reload: Callable[[], Awaitable[None]] | None = None

    # --- life

    async def start(self) -> None:
        """Open the stores, and listen. Raises ConfigError, StoreError."""
        try:
            await self._accounts.change(self.settings)
            for endpoint in self.settings.endpoints:
                listener = Listener(endpoint, self._accept, self._runtime)
                listener.open()
                self._listeners.append(listener)
            if self.settings.websocket is not None:
                self._open_websocket(self.settings.websocket)
            if self.settings.monitoring is not None:
                self._monitoring = MonitoringListener(self, self.settings.monitoring, self.clock)
                await self._monitoring.open()
        except BaseException:
            await self.close()
            raise
        self.leafs.start(self.accounts)
        self._look()

    def _store_ended(self, error: Exception) -> None:
        """Let go of all clients, and tell who runs the server: a store has failed for good."""
        self.failure = error
        for told in self._on_failure:
            told()
        for client in self.roster.all():
            client.close(_SHUTDOWN)

    def on_failure(self, told: Callable[[], None]) -> None:
        """Call ``told`` when a store has failed for good (``failure``): close the server then."""
        self._on_failure.append(told)

    @property
    def endpoints(self) -> list[Endpoint]:
        """Where the server listens, with the ports that it got."""
        return [listener.endpoint for listener in self._listeners]

    @property
    def num_clients(self) -> int:
        """How many clients are connected."""
        return len(self.roster)

    async def close(self) -> None:
        """Finish what has arrived, and close everything. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._events.ends("SHUTDOWN")
        await self._stop_listening()
        await self.leafs.close()
        if self._monitoring is not None:
            await self._monitoring.close()
        await self._read_what_is_there()
        for client in self.roster.all():
            client.stop_reading()
        async with self._changing:
            await self._accounts.finish()
            await self._let_go(self.roster.all())
            await self._accounts.close()

    async def _read_what_is_there(self) -> None:
        """Let clients be read until none of them has sent anything for some rounds of the loop, or for too long."""
        until, quiet, seen = self.clock.monotonic() + _LAST_READ_S, 0, -1
        while quiet < _QUIET_ROUNDS and self.clock.monotonic() < until:
            await asyncio.sleep(0)
            is_quiet = seen == self._shared.reads and not any(client.has_more for client in self.roster.all())
            quiet, seen = quiet + 1 if is_quiet else 0, self._shared.reads

    async def _let_go(self, clients: Sequence[Client]) -> None:
        """Close connections, and wait until that is done; those that do not close their side are cut."""
        for client in clients:
            client.close(_SHUTDOWN)
        until = self.clock.monotonic() + LINGER_S
        while self.roster.closing() and self.clock.monotonic() < until:
            await self.clock.sleep(_LOOK_AT_CLOSING_S)
        for client in self.roster.closing():
            client.cut(client.reason)

    async def _stop_listening(self) -> None:
        for listener in self._listeners:
            await listener.close()
        if self._websocket is not None:
            await self._websocket.close()

    async def reload(self, settings: ServerSettings, apply: Callable[[], None] = lambda: None) -> None:
        """Go on with other ``settings``, and with what the authenticator says then.

        ``apply`` is called when they are valid and everything that they need is open. Clients that are not let in any
        more are told, and go, before anything else is done; what a client sends from then on waits until it was let in
        again. Raises ConfigError if a setting changes that cannot while the server runs, StoreError if a store cannot
        be opened; then all stays as it was.
        """
        async with self._changing:
            if self._closed:
                return
            check_settings(self.settings, settings)

            def change() -> None:
                apply()
                self.settings, self.configured = settings, self.clock.now()
                self.reloads += 1

            await self._accounts.change(settings, change)
            looks: list[asyncio.Task[None]] = []
            async for some in in_portions(self.roster.all(), _RECONSIDERED_AT_ONCE):
                looks += [look for client in some if (look := client.reconsider()) is not None]
            await _refuse(self.roster.all()[settings.max_connections :], _TOO_MANY)
            await self._accounts.settle()
        # Those whose password has to be checked again keep nobody waiting who has to go.
        await asyncio.gather(*looks)
        for account in self.accounts.values():
            await _refuse(account.excess(), MAX_ACCOUNT_CONNECTIONS)

    def on_reload(self, read: Callable[[], Awaitable[None]]) -> None:
        """Let the system account ask for the settings to be read again."""
        self._on_reload = read

    async def reload_settings(self) -> None:
        """Read the settings again, as :meth:`on_reload` said how. Raises ConfigError."""
        if self._on_reload is None:
            raise ConfigError("the settings of this server do not come from a file")
        await self._on_reload()

    async def lame_duck(self) -> None:
        """Accept no more clients, tell those that are connected, let go of them one by one, and close."""
        if self._is_lame or self._closed:
            return
        self._is_lame = True
        self._events.ends("LAMEDUCK")
        await self._stop_listening()
        for client in self.roster.all():
            client.write(encode_info(self.hello(client, "")))
        await self._runtime.clock.sleep(self.settings.lame_duck_grace_period)
        clients = self.roster.all()
        if clients:
            pause = self.settings.lame_duck_duration / len(clients)
            for client in clients:
                account = self._accounts.by_name.get(client.account_name)
                if account is not None and account.link is not None:
                    await account.link.up_to_here()
                client.close(_SHUTDOWN)
                await self._runtime.clock.sleep(min(pause, 1.0))
        await self.close()

    # --- connections

    async def take(self, connected: socket.socket) -> None:
        """Let in a client by a socket that nobody has listened for."""
        await let_in(connected, self._new_client, None)

    async def _accept(self, accepted: socket.socket) -> None:
        door = None if accepted.family == socket.AF_UNIX else self.settings.tls
        if door is None:
            await let_in(accepted, self._new_client, None)
        elif arrived := self._arriving(accepted):
            try:
                await let_in(accepted, self._new_client, door)
            finally:
                arrived()

    def _arriving(self, accepted: socket.socket) -> Callable[[], None] | None:
        """Count a connection until its handshake is over and what is returned is called; None if there are too many."""
        if len(self.roster) + len(self._shaking) >= self.settings.max_connections:
            accepted.close()
            return None
        self._shaking.add(accepted)
        return partial(self._shaking.discard, accepted)

    def _open_websocket(self, door: WebSocketDoor) -> None:
        try:
            from pelton.server.websocket import WebSocketBridge
        except ModuleNotFoundError:
            raise ConfigError("WebSocket clients need websockets: pip install 'pelton[serve]'") from None

        async def accept(accepted: socket.socket) -> None:
            # Certificates may have been replaced since.
            now, arrived = self.settings.websocket or door, self._arriving(accepted)
            if arrived is None:
                return
            loop, tls = asyncio.get_running_loop(), now.tls
            try:
                await loop.connect_accepted_socket(
                    lambda: WebSocketBridge(now, self._new_bridged, self._shared, arrived),
                    accepted,
                    ssl=None if tls is None else tls.context,
                    ssl_handshake_timeout=None if tls is None else tls.timeout,
                )
            except BaseException:
                arrived()
                raise

        self._websocket = Listener(Endpoint(host=door.host, port=door.port), accept, self._runtime)
        self._websocket.open()

    def _new_bridged(self) -> Client:
        client = self._new_client()
        client.is_bridged = True
        return client

    def _new_client(self) -> Client:
        return Client(self, self._shared, self.new_number())

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def admit(self, client: ClientConnection) -> str:
        """Count a new connection; return why it is refused, or an empty text."""
        assert isinstance(client, Client)
        refused = _TOO_MANY if len(self.roster) >= self.settings.max_connections else ""
        self.roster.add(client)
        return refused

    def on_entry(self, client: ClientConnection) -> None:
        """Tell that a client was let in."""
        self._events.on_entry(client)

    def on_refusal(self, client: ClientConnection) -> None:
        """Tell that a client was not let in."""
        self._events.on_refusal(client)

    def on_closing(self, client: ClientConnection) -> None:
        """Report a connection no more: it is being closed."""
        gone = self.roster.remove(self.clock, client.number)
        if gone is not None and gone.account_name:
            self._events.on_leave(gone, gone.reason)

    def on_closed(self, number: int) -> None:
        """Count the connection of a ``number`` no more."""
        self.roster.forget(number)

    def send_away(self, number: int) -> bool:
        """Ask a client to go elsewhere, as in lame duck mode; False if there is none of the number."""
        client = self.roster.get(number)
        if client is not None:
            client.write(encode_info(replace(self.hello(client, ""), ldm=True)))
        return client is not None

    def account(self, name: str) -> ServerAccount | None:
        return self._accounts.by_name.get(name)

    # --- monitoring

    @property
    def clients(self) -> list[Client]:
        return self.roster.all()

    @property
    def accounts(self) -> dict[str, ServerAccount]:
        return dict(self._accounts.by_name)

    @property
    def websocket_endpoint(self) -> Endpoint | None:
        """Where WebSocket clients connect, with the port that it got; None if nowhere."""
        return None if self._websocket is None else self._websocket.endpoint

    @property
    def monitoring_endpoint(self) -> Endpoint | None:
        """Where reports are told over HTTP, with the port that it got; None if nowhere."""
        return None if self._monitoring is None else self._monitoring.endpoint

    def hello(self, client: ClientConnection, nonce: str) -> ServerHello:
        address = client.peer.rpartition(":")[0].strip("[]")
        about = self.about()
        # What lies below a WebSocket has its own TLS, and has used it by now.
        tls = about.tls_required and not client.is_bridged
        auth = self.authenticator.is_required(client.kind)
        told = replace(
            about, tls_required=tls, auth_required=auth, client_id=client.number, client_ip=address, nonce=nonce
        )
        account = client.account_name if client.is_introduced else ""
        if not account:
            return told
        is_system = account == self.settings.system_account
        return replace(told, connect_info=True, remote_account=account, acc_is_sys=is_system)

    def about(self) -> ServerHello:
        """Return what everybody is told of the server."""
        first = self._listeners[0].endpoint if self._listeners else Endpoint()
        host, port = self.settings.told_address(first)
        has_jetstream = any(account.link is not None for account in self.accounts.values())
        return introduction(
            self.settings,
            server_id=self.id,
            server_name=self.name,
            host=host,
            port=port,
            auth_required=self.authenticator.is_required(),
            jetstream=has_jetstream,
            ldm=self._is_lame,
        )

    def facts(self) -> dict[str, Any]:
        """Return what each answer and event says of the server."""
        about = self.about()
        self._told += 1
        return {
            "name": self.name,
            "host": about.host,
            "id": self.id,
            "ver": about.version,
            "jetstream": about.jetstream,
            "flags": _JETSTREAM_FLAGS if about.jetstream else 0,
            "seq": self._told,
            "time": rfc3339(self.clock.now()),
            **({"domain": about.domain} if about.domain else {}),
        }

    def new_nonce(self) -> str:
        """Return a text that nobody can guess: for a client to sign, or in the subject of an answer."""
        # Drawn for each client: an id of this process begins as the last one did, and a signature could be replayed.
        return base64.urlsafe_b64encode(self._runtime.random.randbytes(_NONCE_BYTES)).decode().rstrip("=")

    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine in the background."""
        return self._runtime.spawn(coro, name)

    def _look(self) -> None:
        """Check what only time tells, now and again."""
        now = self.clock.monotonic()
        self._events.look()
        for client in (*self.roster.all(), *self.roster.closing()):
            client.look(now)
        self._accounts.look()
        self.leafs.look(now)
        settings = self.settings
        logins = (settings.auth_timeout, settings.auth_timeout_of("WEBSOCKET"))
        shortest = min(settings.ping_interval, settings.write_deadline, *logins)
        self._look_timer = self.clock.call_later(min(shortest / _LOOKS, _LONGEST_LOOK_S), self._look)


async def _refuse(clients: Sequence[ClientConnection], reason: str) -> None:
    """Tell clients why they have to go: some in each round of the event loop."""
    async for some in in_portions(clients, _RECONSIDERED_AT_ONCE):
        for client in some:
            client.refuse(reason)
