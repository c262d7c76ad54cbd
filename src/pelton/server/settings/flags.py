"""Reads the command line of a server: nats-server's flags, long and short, and Pelton's own. Pure.

As in nats-server, one dash is as good as two, a value follows after a space or an equals sign, and a switch takes a
value only with an equals sign. Words that are no flags are the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from pelton.server.settings.config import (
    AuthorizationConfig,
    JetStreamConfig,
    ServerConfig,
    TlsConfig,
    WebSocketConfig,
)
from pelton.server.settings.grammar import duration_ns, scalar_of
from pelton.server.settings.refused import IGNORED_FLAGS, REFUSED_FLAGS
from pelton.server.settings.section import SettingsError, SettingsFault

FlagValue = str | int | float | bool
FlagKind = Literal["text", "integer", "size", "seconds", "switch"]

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class ServerFlag(NamedTuple):
    """A flag: its spellings, without dashes, its kind, and what it says in one line."""

    names: tuple[str, ...]
    kind: FlagKind
    help: str


# By what they set: a field of CommandLine, of ServerConfig, or of the block before the dot.
FLAGS: Final[dict[str, ServerFlag]] = {
    "config": ServerFlag(("c", "config"), "text", "configuration file"),
    "check": ServerFlag(("t", "check"), "switch", "check the configuration, and exit"),
    "help": ServerFlag(("h", "help"), "switch", "show this text"),
    "version": ServerFlag(("v", "version"), "switch", "show the version"),
    "host": ServerFlag(("a", "addr", "net", "host"), "text", "address to listen on"),
    "port": ServerFlag(("p", "port"), "integer", "port for clients; -1 for any that is free"),
    "unix_socket": ServerFlag(("unix", "unix_socket"), "text", "Unix socket to listen on"),
    "server_name": ServerFlag(("n", "name", "server_name"), "text", "name of the server"),
    "client_advertise": ServerFlag(("client_advertise",), "text", "address that clients are told"),
    "pid_file": ServerFlag(("P", "pid"), "text", "file for the process id"),
    "ports_file_dir": ServerFlag(("ports_file_dir",), "text", "folder for a file with the ports"),
    "max_payload": ServerFlag(("max_payload",), "size", "the largest message (1MB)"),
    "max_pending": ServerFlag(("max_pending",), "size", "what may wait for a client (64MB)"),
    "max_connections": ServerFlag(("max_connections",), "integer", "how many clients (65536)"),
    "ping_interval": ServerFlag(("ping_interval",), "seconds", "how often a silent client is asked (2m)"),
    "lame_duck_duration": ServerFlag(("lame_duck_duration",), "seconds", "how long clients are let go (2m)"),
    "lame_duck_grace_period": ServerFlag(("lame_duck_grace_period",), "seconds", "before the first is let go (10s)"),
    "sync": ServerFlag(("sync",), "text", "commit, interval or off: what an acknowledgement promises (commit)"),
    "key_file": ServerFlag(("key-file", "key_file"), "text", "the key of an encrypted store"),
    "websocket.port": ServerFlag(("websocket_port",), "integer", "port for WebSocket clients"),
    "http_port": ServerFlag(("m", "http_port"), "integer", "port for monitoring"),
    "https_port": ServerFlag(("ms", "https_port"), "integer", "port for monitoring with TLS"),
    "jetstream": ServerFlag(("js", "jetstream"), "switch", "enable JetStream"),
    "jetstream.domain": ServerFlag(("domain",), "text", "the JetStream domain"),
    "jetstream.store_dir": ServerFlag(("sd", "store_dir"), "text", "folder for the stores of accounts"),
    "authorization.user": ServerFlag(("user",), "text", "user that clients must give"),
    "authorization.password": ServerFlag(("pass",), "text", "password that clients must give"),
    "authorization.token": ServerFlag(("auth",), "text", "token that clients must give"),
    "tls": ServerFlag(("tls",), "switch", "enable TLS"),
    "tls.cert_file": ServerFlag(("tlscert",), "text", "certificate of the server"),
    "tls.key_file": ServerFlag(("tlskey",), "text", "private key of the certificate"),
    "tls.verify": ServerFlag(("tlsverify",), "switch", "enable TLS, and demand certificates of clients"),
    "tls.ca_file": ServerFlag(("tlscacert",), "text", "certificates that sign those of clients"),
}
_BY_NAME: Final = {name: field for field, flag in FLAGS.items() for name in flag.names}
_NO_FIELDS: Final = frozenset({"config", "check", "help", "version", "sync", "key_file", "jetstream", "tls"})
# Flags of nats-server that take no value; all others that have no effect do.
_IGNORED_SWITCHES: Final = frozenset(
    {"T", "logtime", "logtime_utc", "s", "syslog", "D", "debug", "V", "trace", "VV", "DV", "DVV"}
)


class CommandLine(NamedTuple):
    """What a command line asks for: the store, the configuration file, and the settings by their fields."""

    stores: tuple[str, ...]
    values: dict[str, FlagValue]
    warnings: tuple[SettingsFault, ...]

    def text(self, field: Literal["sync", "key_file"]) -> str:
        """Return what is no setting of the server, but of its stores; "" if it is not given."""
        return str(self.values.get(field, ""))

    @property
    def config(self) -> str:
        """The configuration file, "" for none."""
        return str(self.values.get("config", ""))

    def has(self, switch: Literal["check", "help", "version"]) -> bool:
        """Whether a switch is on."""
        return bool(self.values.get(switch, False))


def parse_flags(words: Sequence[str]) -> CommandLine:
    """Return what a command line asks for. Raises SettingsError with all that is wrong."""
    stores: list[str] = []
    values: dict[str, FlagValue] = {}
    errors: list[SettingsFault] = []
    warnings: list[SettingsFault] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--":
            stores += reversed(left)
            break
        if len(word) < 2 or not word.startswith("-"):
            stores.append(word)
            continue
        try:
            warning = _flag(word, left, values)
        except ValueError as error:
            errors.append(SettingsFault(None, str(error)))
        else:
            warnings += [warning] if warning else []
    if errors:
        raise SettingsError(errors)
    return CommandLine(tuple(stores), values, tuple(warnings))


def _flag(word: str, left: list[str], values: dict[str, FlagValue]) -> SettingsFault | None:
    """Read one flag, and its value from the words that are left. Raises ValueError."""
    name, equals, given = word.removeprefix("-").removeprefix("-").partition("=")
    if name in REFUSED_FLAGS:
        raise ValueError(f"{word.partition('=')[0]} is not supported: {REFUSED_FLAGS[name]}")
    known = _BY_NAME.get(name)
    if known is None and name not in IGNORED_FLAGS:
        raise ValueError(f"unknown flag {word.partition('=')[0]}")
    is_switch = name in _IGNORED_SWITCHES if known is None else FLAGS[known].kind == "switch"
    if not equals and not is_switch:
        if not left:
            raise ValueError(f"{word} needs a value")
        given = left.pop()
    if known is None:
        return SettingsFault(None, f"{word.partition('=')[0]} has no effect: {IGNORED_FLAGS[name]}")
    values[known] = _value(word, FLAGS[known].kind, given if equals or not is_switch else "true")
    return None


def _value(word: str, kind: FlagKind, given: str) -> FlagValue:
    flag = word.partition("=")[0]
    if kind == "switch":
        if given not in _TRUE | _FALSE:
            raise ValueError(f"{flag} is a switch: {given!r} must be true or false")
        return given in _TRUE
    try:
        return _READERS[kind](given)
    except ValueError:
        raise ValueError(f"{flag} needs {_EXPECTED[kind]}, not {given!r}") from None


def _size(given: str) -> int:
    found = scalar_of(given)
    if not isinstance(found, int) or isinstance(found, bool):
        raise ValueError(given)
    return found


def _seconds(given: str) -> float:
    found = scalar_of(given) if given[-1:].isdigit() else duration_ns(given) / 1e9
    if not isinstance(found, int | float):
        raise ValueError(given)
    return float(found)


_READERS: Final[dict[FlagKind, Callable[[str], FlagValue]]] = {
    "text": str,
    "integer": int,
    "size": _size,
    "seconds": _seconds,
}
_EXPECTED: Final[dict[FlagKind, str]] = {
    "integer": "a number",
    "size": "bytes, or a number with K, KB, M, MB, G or GB",
    "seconds": "a duration such as 2m or 500ms",
}


def with_flags(settings: ServerConfig, line: CommandLine) -> ServerConfig:
    """Return the settings with those of the command line, which count more than those of the file."""
    changes: dict[str, Any] = {
        field: value for field, value in line.values.items() if "." not in field and field not in _NO_FIELDS
    }
    jetstream, authorization, tls = (_inside(line, block) for block in ("jetstream", "authorization", "tls"))
    if line.values.get("jetstream") is False:
        changes["jetstream"] = None
    elif jetstream or line.values.get("jetstream"):
        changes["jetstream"] = msgspec.structs.replace(settings.jetstream or JetStreamConfig(), **jetstream)
    if authorization:
        # A user or token of the command line stands in for all that the file lists.
        changes["authorization"] = AuthorizationConfig(timeout=settings.authorization.timeout, **authorization)
        changes["users"] = ()
    if tls or line.values.get("tls"):
        changes["tls"] = msgspec.structs.replace(settings.tls or TlsConfig(), **tls)
    changed = msgspec.structs.replace(settings, **changes)
    if websocket := _inside(line, "websocket"):
        plain = WebSocketConfig(tls=changed.tls, no_tls=changed.tls is None, compression=True)
        changed = msgspec.structs.replace(
            changed, websocket=msgspec.structs.replace(changed.websocket or plain, **websocket)
        )
    return changed


def _inside(line: CommandLine, block: str) -> dict[str, Any]:
    """Return the values of flags that set fields of a block."""
    return {field.partition(".")[2]: value for field, value in line.values.items() if field.startswith(f"{block}.")}
