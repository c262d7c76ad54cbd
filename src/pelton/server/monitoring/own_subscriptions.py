"""How many subscriptions nats-server has for itself, which it counts with those of clients.

There is none here for a request that the server answers, a stream or a consumer; but who watches a server by these
figures sees those of nats-server 2.15: a subscription for each subject of a request, and for what streams and consumers
are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pelton.engine.serving import Serving
from pelton.server.settings import ServerSettings

# $SYS.REQ.USER.INFO and what an account asks about itself; another one is $JS.API.> if there is JetStream anywhere.
_OF_ACCOUNT: Final = 4
_OF_SYSTEM: Final = 56
_OF_SYSTEM_FOR_JETSTREAM: Final = 2


class OwnSubscriptions:
    """Counts the server's own subscriptions; ``stores`` are those of accounts that have one."""

    def __init__(self, settings: ServerSettings, stores: Mapping[str, Serving]) -> None:
        self._settings = settings
        self._stores = stores

    def of(self, account: str) -> int:
        """Return how many there are in an account."""
        if account == self._settings.system_account:
            return self._of_system()
        config = self._settings.accounts.get(account)
        imports = sum(one.kind == "service" for one in config.imports) if config is not None else 0
        return _OF_ACCOUNT + bool(self._stores) + imports + self._of_store(account)

    def _of_system(self) -> int:
        found = _OF_SYSTEM
        if self._stores:
            stores = [store.configs for store in self._stores.values()]
            # Each consumer has one, and the answers to the API, which is the system's, have one.
            consumers = sum(len(consumers) for _, consumers in stores)
            found += _OF_SYSTEM_FOR_JETSTREAM + consumers + any(streams for streams, _ in stores)
        return found

    def _of_store(self, account: str) -> int:
        if account not in self._stores:
            return 0
        streams, consumers = self._stores[account].configs
        found = sum(len(one.subjects) + 2 * (one.allow_direct and one.mirror is None) for one in streams)
        return found + sum(2 + 2 * (one.ack_policy != "none") + 2 * one.flow_control for one in consumers)
