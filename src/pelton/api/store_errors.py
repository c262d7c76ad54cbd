"""Errors of a backend: the file, the disk, another process, or a cluster's servers."""

from typing import ClassVar, Final

from pelton.api.errors import PeltonError, says


class StoreError(PeltonError):
    """The store at `path` failed; `reason` adds what is known."""

    path: str
    reason: str

    text: ClassVar[str] = "store {path!r} failed{reason}: check the file and its disk, then reopen it"

    def __init__(self, path: str, reason: str = "") -> None:
        self.path, self.reason = path, reason
        super().__init__(self.text.format(path=path, reason=f" ({reason})" if reason else ""))


class StoreBusyError(StoreError):
    """Another process holds the write lock for longer than ``busy_timeout``."""

    text = "store {path!r} is busy{reason}: retry, and keep transactions of other processes short"


class StoreFullError(StoreError):
    """The disk, or the quota of its user, has no space for the write; nothing was stored."""

    text = "store {path!r} has no space left on its disk{reason}: nothing was stored; free space, then retry"


class StoreDescriptorsError(StoreError):
    """Too many files are open for the store to open its own."""

    text = (
        "store {path!r} could not open a file{reason}: raise the limit (ulimit -n, LimitNOFILE in systemd), or close "
        "stores, connections and files, then retry"
    )


class StoreFailedError(StoreError):
    """A write or sync failed and what reached the disk is unknown: the store refuses work until reopened."""

    text = "store {path!r} stopped after a failed write{reason}: check the disk, then close and reopen it"


class StoreGoneError(StoreFailedError):
    """The store was removed, moved or replaced while it was open: further writes would be lost."""

    text = "store {path!r} is not at its path any more{reason}: nothing more is stored; reopen what is there now"


class StoreClosedError(StoreError):
    """The store was closed before or during the operation."""

    text = "store {path!r} is closed{reason}: open it again"


class StoreForkedError(StoreError):
    """The process forked with the store open; the child must not use its parent's connection."""

    text = "store {path!r} was opened before this process forked{reason}: open it again in the child"


class WrongLoopError(StoreError):
    """A handle was used on another event loop, in this thread or another, than the one its store was opened on."""

    text = (
        "store {path!r} was opened on another event loop than the one that uses it now{reason}: call jet.clone() or "
        "pelton.open on this loop, or use pelton.sync, whose handles can be shared by threads"
    )


class StoreVersionError(StoreError):
    """The store was written by a newer Pelton."""

    found: int
    known: int

    def __init__(self, path: str, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(path, f"its schema is {found}, this release knows up to {known}")

    text = "store {path!r} was written by a newer Pelton{reason}: upgrade Pelton to open it"


class NotAStoreError(StoreError):
    """The file is something else, or damaged at its head."""

    text = "{path!r} is no Pelton store{reason}: check the path; the file was left untouched"


class StoreKeyError(StoreError):
    """The store is encrypted and the key is missing or wrong, or it is plain and a key was given."""

    text = "store {path!r} does not open with this key{reason}; nothing was changed"


class StoreReadOnlyError(StoreError):
    """A write to a store that was opened read-only, or could only be opened so."""

    text = "store {path!r} is read-only{reason}: open it writable, or check the rights of the file and folder"


class StoreSettingsError(StoreError):
    """The store, or its file system, does not support the settings given to `open`."""

    text = "store {path!r} cannot be opened with these settings{reason}: change them, or move the store"


# Errors that retries do not cure: whatever waits ends with the error. Except after a wrong event loop, the store
# has to be opened again.
FINAL_ERRORS: Final = (
    StoreFailedError,
    StoreClosedError,
    StoreForkedError,
    WrongLoopError,
    StoreKeyError,
    StoreVersionError,
    NotAStoreError,
)


class ServerUnreachableError(StoreError):
    """No server of the cluster answers, or none has for too long."""

    text = "no server of {path!r} can be reached{reason}: check the address, and that nats-server runs there"


class ServerRefusedError(StoreError):
    """A server answers but refuses the connection."""

    text = "{path!r} refuses the connection{reason}: check user, password, token, credentials and certificates"


class ServerPermissionError(ServerRefusedError):
    """The connection is accepted, but lacks permission for a required subject."""

    text = "{path!r} forbids this{reason}: allow the user to publish and subscribe there (docs/guides/cluster.md)"


class ServerTimeoutError(StoreError):
    """No answer came: whether the request took effect is unknown."""

    text = "{path!r} gave no answer{reason}: whether the request took effect is unknown; check, then retry"


class JetStreamMissingError(StoreError):
    """The server has no JetStream, not for this account, or is too old."""

    text = "{path!r} has no usable JetStream{reason}: start it with -js, and check account and version"


@says(
    "consumer {consumer!r} of stream {stream!r} was silent for {seconds:g} s, its heartbeats were missed: check "
    "that it exists and its server runs, then subscribe again"
)
class HeartbeatMissedError(PeltonError):
    """A push consumer was silent for `seconds`: its sender is gone or unreachable."""

    stream: str
    consumer: str
    seconds: float


class CorruptConfigError(StoreError):
    """The configuration of a stream, or of one of its consumers, is damaged; its messages need not be."""

    stream: str
    consumer: str

    text = (
        "store {path!r} holds a damaged configuration{reason}: everything else can be used; save it with pelton.salvage"
    )

    def __init__(self, stream: str, consumer: str = "", path: str = "") -> None:
        self.stream, self.consumer = stream, consumer
        super().__init__(path, f"stream {stream!r}" + (f", consumer {consumer!r}" if consumer else ""))


class CorruptMessageError(StoreError):
    """The stored bytes of a message do not match their checksum; it is set aside, never delivered."""

    stream: str
    seq: int

    text = "store {path!r} holds a damaged message{reason}: it is never delivered; publish or restore it again"

    def __init__(self, stream: str, seq: int, path: str = "") -> None:
        self.stream, self.seq = stream, seq
        super().__init__(path, f"stream {stream!r}, sequence {seq}, checksum mismatch")
