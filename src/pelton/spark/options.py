"""The options that reads and writes share, and their secrets. Pure.

**Secrets in options, and Spark's redaction of them. Pure.** Spark shows a query's options in its plans, so in its UI
and its event log, and redacts only values whose names match ``spark.redaction.regex`` (secret, password, token). So
secrets are accepted under such names or in files, and are refused elsewhere.

**The options that reads and writes share: which store or cluster, and how to open it. Pure.** Spark passes all options
as text and ignores the case of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple, TypeVar

from pelton.api import ConfigError, PeltonError

_SEED_LENGTH: Final = 58


def refuse_unredacted(given: Mapping[str, str]) -> None:
    """Raise ConfigError for a secret that Spark would not redact."""
    options = {name.lower(): value for name, value in given.items()}
    if "key" in options:
        raise ConfigError("option key would be shown by Spark in its plans: use secretKey or keyFile instead")
    if "@" in options.get("servers", ""):
        raise ConfigError(
            "option servers holds a login, which Spark would show in its plans: give it as the options user and "
            "password, or token"
        )
    nkey = options.get("nkey", "")
    if len(nkey) == _SEED_LENGTH and nkey.startswith("S"):
        raise ConfigError(
            "option nkey holds a seed, which Spark would show in its plans: put it into a file on every executor, and "
            "give that file's path"
        )


def address_options(address: str) -> dict[str, str]:
    """Return a cluster's address as options, with the login in options of its own.

    Raises ConfigError if the servers have different logins.
    """
    scheme, _, hosts = address.partition("://")
    logins = {host.rpartition("@")[0] for host in hosts.split(",")} - {""}
    if not logins:
        return {"servers": address}
    if len(logins) > 1:
        raise ConfigError("the servers of the address have different logins: Spark takes one for all")
    user, colon, password = logins.pop().partition(":")
    login = {"user": user, "password": password} if colon else {"token": user}
    plain = ",".join(host.rpartition("@")[2] for host in hosts.split(","))
    return {"servers": f"{scheme}://{plain}", **login}


# --- the streams that the option ``stream`` selects, by name or pattern. Pure

# The commit log of writes. A query that reads all streams and writes to one of them would never finish if it also read
# its own commits, so patterns do not select this stream; only its name does.
COMMIT_STREAM: Final = "SPARK_COMMITS"


def is_selected(name: str, asked: Iterable[str]) -> bool:
    """Whether names and patterns (``*``, ``?``) select a stream."""
    return any(name == one or (name != COMMIT_STREAM and fnmatchcase(name, one)) for one in asked)


T = TypeVar("T")

_CLUSTER: Final[Mapping[str, str]] = {
    "user": "user",
    "password": "password",
    "token": "token",
    "credentials": "credentials",
    "nkey": "nkey",
    "tlsCa": "tls_ca",
    "tlsCert": "tls_cert",
    "tlsKey": "tls_key",
    "tlsFirst": "tls_first",
    "domain": "domain",
    "apiPrefix": "api_prefix",
    "inboxPrefix": "inbox_prefix",
    "patience": "patience",
}
_STORE: Final = ("path", "servers", "secretKey", "keyFile", *_CLUSTER)
# Kafka's option names in lower case, and ours.
_KAFKA: Final = {
    "kafka.bootstrap.servers": "servers",
    "subscribe": "stream",
    "subscribepattern": "stream",
    "topic": "stream",
    "startingoffsets": "startingSequence",
    "endingoffsets": "endingSequence",
    "startingtimestamp": "startingTime",
    "endingtimestamp": "endingTime",
    "startingoffsetsbytimestamp": "startingTime",
    "endingoffsetsbytimestamp": "endingTime",
    "maxoffsetspertrigger": "maxRowsPerTrigger",
    "minoffsetspertrigger": "minRowsPerTrigger",
    "maxrecordsperpartition": "rowsPerPartition",
}
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Bound(NamedTuple):
    """Where reading begins or ends: a ``sequence``, a ``time`` in nanoseconds, or an end of the stream."""

    kind: Literal["earliest", "latest", "sequence", "time"]
    value: int = 0


@dataclass(frozen=True)
class StoreOptions:
    """A store file or a cluster, and how to open it. May hold secrets, so its ``repr`` leaves them out."""

    address: str
    is_cluster: bool
    key: str | None = field(default=None, repr=False)
    key_file: str | None = None
    login: Mapping[str, Any] = field(default_factory=dict, repr=False)


def store_options(given: Mapping[str, str], others: tuple[str, ...]) -> tuple[StoreOptions, dict[str, str]]:
    """Return the store that the options name, and the ``others`` under the names written there.

    Raises ConfigError for an unknown option.
    """
    options = _spell_names(given, (*_STORE, *others))
    store = _store(options, OptionParser(options))
    return store, {name: value for name, value in options.items() if name in others}


class OptionParser:
    """Parses options one by one; the error for a bad value names the option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def __call__(self, name: str, read: Callable[[str], T], default: T) -> T:
        """Return an option as ``read`` parses it, or the default. Raises ConfigError."""
        text = self._options.get(name)
        if text is None:
            return default
        try:
            return read(text.strip())
        except ValueError as error:
            raise ConfigError(f"option {name} is {text!r}: {error}") from None


def _spell_names(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return the options under our spelling of their names. Raises ConfigError for an unknown option."""
    refuse_unredacted(given)
    written = {name.lower(): name for name in names}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in written:
            raise ConfigError(f"the format pelton has no option {name!r} here{_hint(name.lower(), written)}")
        options[written[name.lower()]] = value
    return options


def _hint(name: str, written: Mapping[str, str]) -> str:
    near = get_close_matches(name, written, n=1)
    meant = _KAFKA.get(name) or (written[near[0]] if near else "")
    return f"; did you mean {meant!r}?" if meant.lower() in written else ""


def _store(options: Mapping[str, str], take: OptionParser) -> StoreOptions:
    path, servers = options.get("path"), options.get("servers")
    if (path is None) == (servers is None):
        raise ConfigError("say where the streams are: set option path (a file) or servers (nats://host:4222)")
    login: dict[str, Any] = {ours: options[name] for name, ours in _CLUSTER.items() if name in options}
    if path is not None:
        if login:
            raise ConfigError(f"{', '.join(login)} belong to a cluster; {path!r} is a file: leave them out")
        if "secretKey" in options and "keyFile" in options:
            raise ConfigError("secretKey and keyFile both give the store's key: keep one")
        return StoreOptions(path, False, options.get("secretKey"), options.get("keyFile"))
    if "secretKey" in options or "keyFile" in options:
        raise ConfigError(
            "secretKey and keyFile open an encrypted store file; a cluster takes user, token, credentials, nkey"
        )
    for name, read in (("tlsFirst", flag), ("patience", seconds)):
        if name in options:
            login[_CLUSTER[name]] = take(name, read, None)
    address = str(servers)
    return StoreOptions(address if ":/" in address else f"nats://{address}", True, login=login)


def positive(text: str) -> int:
    """Parse a whole number of 1 or more. Raises ValueError."""
    number = int(text)
    if number < 1:
        raise ValueError("give 1 or more")
    return number


def flag(text: str) -> bool:
    """Parse ``true`` or ``false``. Raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return text.lower() == "true"


def seconds(text: str) -> float:
    """Parse a duration such as ``90``, ``90s``, ``1.5m``, ``200ms``. Raises ValueError."""
    unit = next((unit for unit in ("ms", "s", "m", "h") if text.endswith(unit)), "")
    number = float(text.removesuffix(unit)) * _UNITS.get(unit, 1.0)
    if not 0 <= number < float("inf"):
        raise ValueError("give seconds, or a number with ms, s, m or h")
    return number


# --- errors that only Spark's reads and writes raise


class DataLossError(PeltonError):
    """Messages of the range to read are gone: a limit or a purge removed them, or their stream was deleted.

    ``first`` and ``last`` are the missing sequences, as far as they are known.
    """

    stream: str
    first: int
    last: int

    def __init__(self, stream: str, first: int, last: int, why: str = "") -> None:
        self.stream, self.first, self.last = stream, first, last
        reason = (
            why or f"the sequences {first} to {last} are gone: limits or a purge removed them before they were read"
        )
        super().__init__(
            f"stream {stream!r}: {reason}. To continue without them, set failOnDataLoss=false; "
            "to lose none, keep messages longer or read sooner"
        )


class LateReplayError(PeltonError):
    """A batch is repeated after the stream's deduplication window has passed, so its rows could be stored twice."""

    stream: str
    writer: str
    batch: int

    def __init__(self, stream: str, writer: str, batch: int, begun: str, window_ns: int) -> None:
        self.stream, self.writer, self.batch = stream, writer, batch
        super().__init__(
            f"stream {stream!r}: batch {batch} of {writer} started at {begun} and was not finished, and the stream "
            f"remembers message ids for {window_ns / 1e9:g} s, so rows stored by then would be stored twice. Make its "
            "duplicate_window longer than a restart takes; this time set onLateReplay=write to store the batch again"
        )
