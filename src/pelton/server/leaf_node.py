"""The store of a program as the leaf node of a hub: a server that listens nowhere, on the program's own engine.

The program's subscriptions, its streams and what it publishes are those of any process that has the file open, and the
server tells the hub of them. Who wants to speak NATS from within the process gets one end of a pair of sockets.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final
from urllib.parse import quote, urlsplit

from pelton.api import ConfigError
from pelton.connect import Leaf
from pelton.engine import Engine
from pelton.runtime import Runtime
from pelton.server.leaf_links import shown_url
from pelton.server.server import Server
from pelton.server.settings import ServerSettings, StoreSettings
from pelton.server.settings.load import HUB
from pelton.server.settings.options import GLOBAL_ACCOUNT, LeafRemoteConfig, TlsConfig
from pelton.subjects import is_filter, is_subject

_LONGEST_WAIT_S: Final = 3600.0


_TEXTS: Final = ("user", "password")
_PATHS: Final = ("credentials", "nkey", "tls_ca", "tls_cert", "tls_key")
_LISTS: Final = ("deny_imports", "deny_exports")


def _check_kinds(leaf: Leaf) -> None:
    if not isinstance(leaf.urls, (str, list, tuple)):
        raise ConfigError(f"leaf: the address of a hub is {leaf.urls!r}: give nats://HOST:7422 or tls://HOST:7422")
    for names, kinds, wanted in ((_TEXTS, (str,), "a text (str)"), (_PATHS, (str, os.PathLike), "a path")):
        for name in names:
            if (value := getattr(leaf, name)) is not None and not isinstance(value, kinds):
                raise ConfigError(f"leaf: {name} is {value!r:.40}: give {wanted}")
    for name in _LISTS:
        value = getattr(leaf, name)
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) and is_filter(each) for each in value):
            raise ConfigError(f"leaf: {name} is {value!r:.40}: give a list of subjects, wildcards allowed")
    if not isinstance(leaf.tls_first, bool):
        raise ConfigError(f"leaf: tls_first is {leaf.tls_first!r:.40}: give True or False")
    domain, wait = leaf.domain, leaf.reconnect
    if not isinstance(domain, str) or (domain and ("." in domain or not is_subject(domain))):
        raise ConfigError(f"leaf: domain {domain!r} must be one token: no dots, wildcards or white space")
    if not isinstance(wait, (int, float)) or not 0 < wait <= _LONGEST_WAIT_S:
        raise ConfigError(f"leaf: reconnect is {wait!r}: give seconds, more than 0 and {_LONGEST_WAIT_S:g} at most")


def remote_of(leaf: Leaf) -> LeafRemoteConfig:
    """Return the settings of a hub. Raises ConfigError."""
    _check_kinds(leaf)
    urls = [leaf.urls] if isinstance(leaf.urls, str) else list(leaf.urls)
    for url in urls or [""]:
        if not isinstance(url, str) or HUB.fullmatch(url) is None:
            shown = url.rpartition("@")[2] if isinstance(url, str) else url
            raise ConfigError(f"leaf: the address of a hub is {shown!r}: give nats://HOST:7422 or tls://HOST:7422")
    if (leaf.user is None) != (leaf.password is None):
        raise ConfigError("leaf: user and password belong together: give both")
    ways = [name for name in ("user", "credentials", "nkey") if getattr(leaf, name) is not None]
    if len(ways) > 1:
        raise ConfigError(f"leaf: {' and '.join(ways)} each give a login for the hub: keep one of them")
    if leaf.user is not None:
        login = f"{quote(leaf.user, safe='')}:{quote(leaf.password or '', safe='')}"
        urls = [f"{(parts := urlsplit(url)).scheme}://{login}@{parts.netloc.rpartition('@')[2]}" for url in urls]
    files = [None if path is None else os.fspath(path) for path in (leaf.tls_ca, leaf.tls_cert, leaf.tls_key)]
    if (files[1] is None) != (files[2] is None):
        raise ConfigError("leaf: tls_cert and tls_key belong together: give both")
    ca, cert, key = [path or "" for path in files]
    return LeafRemoteConfig(
        urls=tuple(urls),
        credentials=os.fspath(leaf.credentials or ""),
        nkey=os.fspath(leaf.nkey or ""),
        deny_imports=tuple(leaf.deny_imports),
        deny_exports=tuple(leaf.deny_exports),
        tls=TlsConfig(ca_file=ca, cert_file=cert, key_file=key, handshake_first=leaf.tls_first)
        if ca or cert or leaf.tls_first
        else None,
        reconnect=leaf.reconnect,
    )


class ProgramLeaf:
    """The leaf node of a program; belongs to the event loop that starts it."""

    def __init__(self, leaf: Leaf, path: str, runtime: Runtime) -> None:
        remote = remote_of(leaf)
        self.url: str = shown_url(remote.urls[0])
        self._settings = ServerSettings(
            endpoints=(), stores={GLOBAL_ACCOUNT: StoreSettings(path=path)}, domain=leaf.domain, leaf_remotes=(remote,)
        )
        self.domain: str = leaf.domain
        self.inbox_prefix: str = ""
        self._runtime = runtime
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    async def start(self, engine: Engine) -> None:
        """Join the hub, in the background. Raises StoreError."""
        self._loop = asyncio.get_running_loop()
        self._server = Server(self._settings, self._runtime, open_store=lambda _: engine.clone())
        await self._server.start()
        link = self._server.accounts[GLOBAL_ACCOUNT].link
        assert link is not None
        self.inbox_prefix = f"{link.serving.own_inboxes()}_{self._runtime.ids.new()}"

    async def close(self) -> None:
        """Leave the hub. Idempotent."""
        server, self._server = self._server, None
        if server is not None and os.getpid() == self._pid:
            await server.close()

    @property
    def reason(self) -> str:
        """Why the hub is not connected, "" while it is."""
        links = self._server.leafs.all if self._server is not None else []
        return links[0].reason if links else "the store was closed"

    def dial(self) -> socket.socket:
        """Return a socket that speaks NATS with this process's server. Raises OSError if that has ended.

        Any thread may call it.
        """
        server, loop = self._server, self._loop
        if server is None or loop is None or os.getpid() != self._pid:
            raise ConnectionRefusedError("the store that is the leaf node was closed")
        theirs, ours = socket.socketpair()
        for each in (theirs, ours):
            each.setblocking(False)
        loop.call_soon_threadsafe(lambda: server.spawn(server.take(theirs), "pelton takes a client of this process"))
        return ours
