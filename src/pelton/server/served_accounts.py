"""The accounts that a server has, their stores, and the ways between them: by its settings, and by others later.

Design: a change of settings first opens what is new, which may fail, and leaves everything as it was then. The switch
to it is one step of the event loop: no message meets half of a change. What takes longer is done after it
(:meth:`ServedAccounts.settle`): new stores learn of subscriptions, and those that are not served any more are closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from pelton.api import ConfigError, PeltonError
from pelton.engine import Engine, EngineSettings
from pelton.runtime import Runtime
from pelton.server.account import ServerAccount
from pelton.server.accounts import AccountUsage
from pelton.server.crossing import AccountCrossing, AccountExchange, MessageTracer
from pelton.server.jetstream.link import StoreLink
from pelton.server.jetstream.service import JetStreamService
from pelton.server.jetstream.verbs import MissingJetStream, ReplyCompletion
from pelton.server.monitoring import Observed, SystemService
from pelton.server.settings import ServerSettings, StoreSettings
from pelton.server.settings.options import GLOBAL_ACCOUNT, AccountConfig


class ServedAccounts:
    """The accounts of a server. ``store_ended`` is called when a store has failed for good."""

    def __init__(
        self,
        server: Observed,
        runtime: Runtime,
        store_ended: Callable[[Exception], None],
        new_token: Callable[[], str],
    ) -> None:
        self._server = server
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
        _check_apart(settings.stores)
        imports = any(account.imports for account in settings.accounts.values())
        exchange = AccountExchange(settings.accounts.values()) if imports else None
        wanted = filter(None, (GLOBAL_ACCOUNT, settings.system_account, *settings.stores, *settings.accounts))
        accounts = {name: self.by_name.get(name) or self._new_account(name) for name in wanted}
        opened: dict[str, StoreLink] = {}
        try:
            for name, store in settings.stores.items():
                if accounts[name].link is None:
                    opened[name] = self._linked(accounts[name], store, settings.domain)
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
        usage = AccountUsage(AccountConfig(name=name).limits)
        account = ServerAccount(name, self._runtime.random.choice, usage, self._runtime.clock.monotonic)
        account.tracer = self._tracer
        account.services["$SYS"] = SystemService(self._server, name, account.answer, self._runtime)
        return account

    def _linked(self, account: ServerAccount, store: StoreSettings, domain: str) -> StoreLink:
        settings = EngineSettings(path=store.path, sync=store.sync, limits=store.limits, key=store.key)
        engine = Engine(settings, self._runtime)
        engine.on_end(self._store_ended)
        return StoreLink(engine, account, self._runtime, domain)

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
        account.usage.limits, account.crossing, account.tracing = config.limits, self._crossing, config.tracing
        if opened is not None:
            completion = ReplyCompletion(self._server.name, settings.domain, partial(self._config, account.name))
            account.services["$JS"] = JetStreamService(opened, completion)
        elif store is None:
            account.services.pop("$JS", None)
            if settings.stores:
                purge = self._purge if account.name == settings.system_account else None
                account.services["$JS"] = MissingJetStream(account.answer, partial(self._imports, account.name), purge)
        elif account.link is not None:
            account.link.engine.limit(store.limits)
        account.attach(opened or (account.link if store is not None else None))

    def _imports(self, name: str, subject: str) -> bool:
        """Whether an account imports a service."""
        return self._crossing is not None and bool(self._crossing.exchange.services(name, subject))

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
        """Close the stores."""
        for account in list(self.by_name.values()):
            account.forget()
            if account.link is not None:
                await account.link.close()


def _check_apart(stores: Mapping[str, StoreSettings]) -> None:
    """Raise ConfigError if two accounts have one file, also by a link: they would share all that they store."""
    known: dict[str | tuple[int, int], str] = {}
    for account, store in stores.items():
        file: str | tuple[int, int] = os.path.realpath(store.path)
        with suppress(OSError):
            found = os.stat(store.path)
            file = found.st_dev, found.st_ino
        other = known.setdefault(file, account)
        if other != account:
            raise ConfigError(
                f"accounts {other!r} and {account!r} would share one file, {stores[other].path!r} and {store.path!r}: "
                "give each a file of its own"
            )
