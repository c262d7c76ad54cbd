"""From an address to an open :class:`Jet`: the one place where a backend is chosen."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, Unpack

import msgspec

from pelton.api import AccountLimits, ConfigError, JetStreamMissingError, ServerRefusedError, ServerUnreachableError
from pelton.api.arguments import check_fields, check_instance, check_known
from pelton.api.build import seconds_to_ns
from pelton.api.keys import Key, key_bytes
from pelton.api.times import Seconds
from pelton.connect.store import Jet
from pelton.engine import Engine, EngineSettings
from pelton.runtime import Deadline, Runtime, system_runtime
from pelton.storage import OWNER_ONLY, SyncMode

if TYPE_CHECKING:
    from pelton.cluster import ClusterSettings


def warn_without_gil() -> None:
    """Warn on a free-threaded Python that runs without its lock: nothing has been tried there."""
    is_enabled = getattr(sys, "_is_gil_enabled", None)
    if is_enabled is not None and not is_enabled():
        warnings.warn(
            "Pelton is not tested on a free-threaded Python without the GIL: set PYTHON_GIL=1, or use another Python",
            RuntimeWarning,
            stacklevel=3,
        )


_MEMORY: Final = "memory:"
_ADDRESSES: Final = "a path, 'memory:', 'nats://host:4222', 'tls://host' or 'context:path'"
_SYNC_MODES: Final = ("commit", "interval", "off")
_OF_WRITERS: Final = ("sync", "sync_interval", "busy_timeout", "limits", "mode", "leaf")
_CLUSTER_SCHEMES: Final = ("nats", "tls", "context")
# How often a domain is looked for that nobody answers for, and how long while the hub is connected.
_LOOK_S: Final = 0.2
_DOMAIN_S: Final = 3.0
# What the reason says if a hub is there, and does not let this leaf node in.
_REFUSED: Final = ("Authorization", "certificate", "credentials")
_memory_stores = count(1)


class ClusterOptions(TypedDict, total=False):
    """Options of :func:`open` for a cluster.

    Authentication, one of these or ``user:password@`` in the address: ``user`` and ``password``, ``token``,
    ``credentials`` (a user's credentials file, as ``nsc`` writes it), ``nkey`` (a seed, or a file that holds one).

    ``tls``, an ``ssl.SSLContext``, or the files ``tls_ca``, ``tls_cert``, ``tls_key``; ``tls_first`` for servers
    with ``handshake_first``. With any of them, as with ``tls://``, nothing is sent in plain text.

    ``domain`` or ``api_prefix``: where the JetStream API is. ``inbox_prefix``: the prefix of reply subjects
    (``_INBOX``).

    ``patience`` bounds how long an operation retries through lost connections and elections (30 s).
    ``message_ids`` (True) generates a ``msg_id`` for every publish without one, so that retries are harmless.
    """

    user: str
    password: str
    token: str
    credentials: str | os.PathLike[str]
    nkey: str | os.PathLike[str]
    tls: ssl.SSLContext
    tls_ca: str | os.PathLike[str]
    tls_cert: str | os.PathLike[str]
    tls_key: str | os.PathLike[str]
    tls_first: bool
    domain: str
    api_prefix: str
    inbox_prefix: str
    patience: float | timedelta
    message_ids: bool


class Leaf(msgspec.Struct, frozen=True):
    """How a file joins a NATS system as its leaf node, from within the program: ``pelton.open(path, leaf=Leaf(...))``.

    Nothing listens. Several processes may open the file so: one of them is connected, and another takes over once it
    ends.
    """

    urls: str | Sequence[str]
    """The hub, ``nats://HOST:7422`` or ``tls://HOST:7422``; several are tried in turn."""
    domain: str = ""
    """The JetStream domain of this file, by which the other side reaches it; empty for none."""
    user: str | None = None
    """The user that the hub knows, with ``password``."""
    password: str | None = None
    """The user's password."""
    credentials: str | os.PathLike[str] | None = None
    """A file with a user's JWT and seed, as ``nsc generate creds`` writes it. Needs ``pip install 'pelton[serve]'``."""
    nkey: str | os.PathLike[str] | None = None
    """A user's seed (``SU...``), or a file that holds one. Needs ``pip install 'pelton[serve]'``."""
    tls_ca: str | os.PathLike[str] | None = None
    """The authority that has signed the hub's certificate (PEM); the system's own if it is None."""
    tls_cert: str | os.PathLike[str] | None = None
    """The certificate that is shown to the hub, with ``tls_key``."""
    tls_key: str | os.PathLike[str] | None = None
    """The private key of the certificate."""
    deny_imports: Sequence[str] = ()
    """Subjects on which the hub sends nothing."""
    deny_exports: Sequence[str] = ()
    """Subjects on which the hub is sent nothing."""
    reconnect: float = 1.0
    """Seconds before a lost hub is tried again; each further attempt waits twice as long, up to 30."""
    tls_first: bool = False
    """Whether the hub expects TLS before it says anything: ``handshake_first`` in its settings."""

    def __repr__(self) -> str:
        # The addresses may hold a password.
        return f"Leaf(domain={self.domain!r})"


class LeafNode(Protocol):
    """The leaf node of this process, of the JetStream ``domain``.

    Replies to this process are told the hub by ``inbox_prefix``, so that it sends no others.
    """

    url: str
    domain: str
    inbox_prefix: str

    @property
    def reason(self) -> str:
        """Why the hub is not connected, "" while it is."""

    async def start(self, engine: Engine) -> None:
        """Join the hub."""

    async def close(self) -> None:
        """Leave it."""

    def dial(self) -> socket.socket:
        """Return a socket to this process's server."""


class _FileOptions(TypedDict):
    """What :func:`open` was given for a file; None: not given."""

    sync: SyncMode | None
    sync_interval: float | timedelta | None
    busy_timeout: float | timedelta | None
    limits: AccountLimits | None
    key: Key | None
    mode: int | None
    read_only: bool | None
    leaf: Leaf | None


class Opening:
    """A store about to be opened: ``await`` it, or use it as ``async with``."""

    def __init__(self, connect: Callable[[], Awaitable[Jet]]) -> None:
        self._connect = connect
        self._jet: Jet | None = None

    def __await__(self) -> Generator[Any, None, Jet]:
        return self._open().__await__()

    async def __aenter__(self) -> Jet:
        self._jet = await self._open()
        return self._jet

    async def __aexit__(self, *_: object) -> None:
        assert self._jet is not None
        await self._jet.close()

    async def _open(self) -> Jet:
        return await self._connect()


def open(
    address: str | os.PathLike[str],
    *,
    sync: SyncMode | None = None,
    sync_interval: float | timedelta | None = None,
    busy_timeout: float | timedelta | None = None,
    limits: AccountLimits | None = None,
    key: Key | None = None,
    mode: int | None = None,
    read_only: bool = False,
    leaf: Leaf | None = None,
    runtime: Runtime | None = None,
    **cluster: Unpack[ClusterOptions],
) -> Opening:
    """Open a store: the path of a file (created if it is missing), ``memory:`` for one that ends with the process,
    or a NATS cluster with JetStream (needs the extra: ``pip install 'pelton[cluster]'``):
    ``nats://host:4222,other:4222``, ``tls://host``, or ``context:path`` for a file of ``nats context``.

    A file: ``sync`` decides what an acknowledgement promises: ``commit`` (default) that the message is on disk;
    ``interval`` that it will be within ``sync_interval`` (0.1 s); ``off`` that it survives this process, not a
    power loss. ``busy_timeout`` (30 s) bounds the wait for another process's transaction. ``limits`` bound what may
    be stored and created through this handle, as a NATS server bounds an account. ``key`` encrypts a new file and
    opens an encrypted one: a string, bytes, a :class:`pelton.KeyFile` or a function that fetches it.
    ``mode`` sets the permissions of a new file: for its owner alone by default (0o600), 0o660 for a group; an
    existing file keeps its own. Any number of processes may open the same file.

    ``read_only`` opens an existing file to look at it: nothing is written, nothing waits for it, and no file appears
    beside it, so a read-only file system will do. Streams, messages, consumers, buckets and :meth:`Jet.read` can be
    read; whatever writes, which includes deliveries and subscriptions, raises StoreReadOnlyError. What has expired is
    not read, but counts until a process that writes removes it.

    ``leaf`` makes the file a leaf node of a NATS system, as long as it is open here: see :class:`Leaf` and
    :meth:`Jet.domain`. A hub that is away stops nothing.

    A cluster: ``cluster`` takes the fields of :class:`ClusterOptions`. The cluster itself decides on durability.

    Raises ConfigError, also for an option of the other kind; ServerUnreachableError, ServerRefusedError,
    ServerTimeoutError, JetStreamMissingError; NotAStoreError, StoreKeyError, StoreVersionError,
    StoreReadOnlyError, StoreSettingsError, StoreBusyError.
    """
    warn_without_gil()
    text = _text_of(address)
    runtime = system_runtime() if runtime is None else runtime
    check_instance("open", "runtime", runtime, Runtime, "leave it out, or give a pelton.runtime.Runtime")
    check_instance("open", "read_only", read_only, bool, "give True to open a file for reading alone")
    given: _FileOptions = {
        "sync": sync,
        "sync_interval": sync_interval,
        "busy_timeout": busy_timeout,
        "limits": limits,
        "key": key,
        "mode": mode,
        "read_only": read_only or None,
        "leaf": leaf,
    }
    _refuse_unknown(cluster)
    scheme = _cluster_scheme(text)
    if scheme is None:
        _refuse(list(cluster), text, "a file", "a cluster")
        return Opening(_file(text, given, runtime))
    _refuse([option for option, value in given.items() if value is not None], text, "a cluster", "a file")
    return Opening(_cluster(scheme, text, dict(cluster), runtime))


def _file(text: str, given: _FileOptions, runtime: Runtime) -> Callable[[], Awaitable[Jet]]:
    _refuse_other_programs_names(text)
    settings = _engine_settings(
        text,
        "commit" if given["sync"] is None else given["sync"],
        given["sync_interval"],
        30.0 if given["busy_timeout"] is None else given["busy_timeout"],
        AccountLimits() if given["limits"] is None else given["limits"],
        OWNER_ONLY if given["mode"] is None else given["mode"],
    )
    if given["read_only"]:
        options: Mapping[str, object] = given
        _refuse_writers([option for option in _OF_WRITERS if options[option] is not None], settings)
    if given["mode"] is not None and settings.memory:
        raise ConfigError("'memory:' has no file, and so no permissions: leave mode= out")
    if given["key"] is not None and settings.memory:
        raise ConfigError("'memory:' has no file to encrypt: leave key= out")
    node = None if given["leaf"] is None else _leaf_node(given["leaf"], settings.path, runtime)
    return _engine(settings, given["key"], runtime, node, read_only=bool(given["read_only"]))


def _refuse_writers(options: list[str], settings: EngineSettings) -> None:
    if settings.memory:
        raise ConfigError("'memory:' begins empty: leave read_only= out")
    if options:
        raise ConfigError(f"read_only=True writes nothing, and {', '.join(options)} are about writing: leave them out")


def _text_of(address: str | os.PathLike[str]) -> str:
    if not isinstance(address, str | os.PathLike) or not isinstance(text := os.fspath(address), str):
        raise ConfigError(f"open({address!r}): give {_ADDRESSES}")
    if not text or "\0" in text:
        raise ConfigError(f"open({text!r}): no file has this name; give {_ADDRESSES}")
    return text


def _refuse_other_programs_names(text: str) -> None:
    """Refuse names that other programs don't take for a file: it would be created where you would never look for it."""
    if text in (":memory:", "memory"):
        raise ConfigError(
            f"open({text!r}) would make a file of this name: write 'memory:' for a store in memory, "
            f"or './{text}' if a file is what you want"
        )
    if text.startswith("file:"):
        path = text.removeprefix("file:").removeprefix("//").partition("?")[0]
        raise ConfigError(f"open({text!r}): a store is opened by its path, not by a URI: write {path!r}")


def _cluster_scheme(address: str) -> str | None:
    scheme, found, _ = address.partition(":")
    if scheme in _CLUSTER_SCHEMES and found:
        return scheme
    if "://" in address:
        raise ConfigError(f"{scheme}:// is not supported: give {_ADDRESSES}")
    return None


def _refuse(options: list[str], address: str, kind: str, other: str) -> None:
    if options:
        shown = address if kind == "a file" else address.partition(":")[0] + ":..."
        raise ConfigError(f"{shown!r} is {kind}, and {', '.join(options)} mean something to {other} alone: leave out")


def _refuse_unknown(options: Mapping[str, object]) -> None:
    known = list(ClusterOptions.__annotations__)
    check_known("open", options, [*known, *_FileOptions.__annotations__])


def _engine_settings(
    text: str,
    sync: SyncMode,
    sync_interval: float | timedelta | None,
    busy_timeout: float | timedelta,
    limits: AccountLimits,
    mode: int,
) -> EngineSettings:
    if sync not in _SYNC_MODES:
        raise ConfigError(f"sync is {sync!r}: choose one of {', '.join(map(repr, _SYNC_MODES))}")
    _check_mode(mode)
    if sync_interval is not None and sync != "interval":
        raise ConfigError(
            f"{text!r}: sync_interval is for sync='interval', and sync is {sync!r}: "
            "give sync='interval' as well, or leave sync_interval out"
        )
    check_instance("open", "limits", limits, AccountLimits, "give a pelton.AccountLimits, or leave it out")
    check_fields("open: limits", limits)
    memory = text == _MEMORY
    return EngineSettings(
        path=f"pelton-{os.getpid()}-{next(_memory_stores)}" if memory else text,
        memory=memory,
        sync=sync,
        interval=seconds_to_ns("sync_interval", 0.1 if sync_interval is None else sync_interval, repr(text)) / 1e9,
        busy_timeout=seconds_to_ns("busy_timeout", busy_timeout, repr(text)) / 1e9,
        limits=limits,
        mode=mode,
    )


def _check_mode(mode: int) -> None:
    if not isinstance(mode, int) or isinstance(mode, bool):
        raise ConfigError(f"mode is {mode!r}: give the permissions of the file as a number, such as 0o600 or 0o660")
    shares = {0o600, 0o640, 0o660, 0o644, 0o664, 0o666}
    if mode not in shares:
        allowed = ", ".join(f"0o{each:o}" for each in sorted(shares))
        raise ConfigError(f"mode is 0o{mode:o}, which are no permissions for a store: choose one of {allowed}")


def _engine(
    settings: EngineSettings, key: Key | None, runtime: Runtime, node: LeafNode | None, *, read_only: bool
) -> Callable[[], Awaitable[Jet]]:
    async def connect() -> Jet:
        opened = msgspec.structs.replace(settings, key=key_bytes(key))
        if read_only:
            from pelton.engine.read_only_engine import ReadOnlyEngine

            return Jet(ReadOnlyEngine(opened, runtime), runtime)
        engine = Engine(opened, runtime)
        if node is None:
            return Jet(engine, runtime)
        jet = Jet(engine, runtime, partial(_domain_by, node, runtime), node, node.domain)
        try:
            await node.start(engine)
        except BaseException:
            await jet.close()
            raise
        return jet

    return connect


def _leaf_node(leaf: Leaf, path: str, runtime: Runtime) -> LeafNode:
    check_instance("open", "leaf", leaf, Leaf, "give a pelton.Leaf, or leave it out")
    # The server stands above this room, and few programs need it.
    node: LeafNode = import_module("pelton.server.leaf_node").ProgramLeaf(leaf, path, runtime)
    return node


async def _domain_by(
    node: LeafNode, runtime: Runtime, name: str | None, patience: Seconds, api_prefix: str | None = None
) -> Jet:
    """Open a domain that the hub of a leaf node leads to, once it does."""
    need_nats("domain" if api_prefix is None else f"a write to {api_prefix}")
    from pelton.cluster import in_domain, settings_by

    settings = in_domain(settings_by(node.dial, node.url, node.inbox_prefix), name, patience, api_prefix)
    deadline, connected = Deadline(runtime.clock, settings.patience), Deadline(runtime.clock, _DOMAIN_S)
    while True:
        try:
            return await _join(settings, runtime)
        except JetStreamMissingError:
            if node.reason:
                connected = Deadline(runtime.clock, _DOMAIN_S)
            elif connected.left == 0:
                raise
            if deadline.left == 0:
                is_refused = any(word in node.reason for word in _REFUSED)
                kind = ServerRefusedError if is_refused else ServerUnreachableError
                raise kind(settings.name, node.reason or "nobody answers there") from None
        await runtime.clock.sleep(_LOOK_S)


async def _join(settings: ClusterSettings, runtime: Runtime) -> Jet:
    from pelton.cluster import Cluster, in_domain

    async def domain(name: str | None, patience: Seconds, api_prefix: str | None = None) -> Jet:
        return await _join(in_domain(settings, name, patience, api_prefix), runtime)

    cluster = Cluster(settings, runtime)
    await cluster.connect()
    return Jet(cluster, runtime, domain)


def need_nats(what: str) -> None:
    """Raise ConfigError if nats-py is not installed, which ``what`` needs."""
    try:
        import pelton.cluster  # noqa: F401  # the question is whether it is there
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "nats":
            raise
        raise ConfigError(f"{what} needs nats-py, which is not installed: pip install 'pelton[cluster]'") from None


def _cluster(scheme: str, address: str, options: dict[str, Any], runtime: Runtime) -> Callable[[], Awaitable[Jet]]:
    need_nats(f"a {scheme}: address")
    from pelton.cluster import read_context, settings_of

    if scheme == "context":
        address, options = read_context(address.partition(":")[2], options)
    settings = settings_of(address, **options)

    async def connect() -> Jet:
        return await _join(settings, runtime)

    return connect
