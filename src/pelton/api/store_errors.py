"""Errors of a store, and of what is kept in one: buckets, locks, elections and transactions."""

from typing import Final

from pelton.api.errors import PeltonError, says


@says("store {path!r} failed{because}: check the file and its disk, then reopen it")
class StoreError(PeltonError):
    """The store at `path` failed; `reason` adds what is known."""

    path: str
    reason: str = ""


@says("store {path!r} is busy{because}: retry, and keep transactions of other processes short")
class StoreBusyError(StoreError):
    """Another process holds the write lock for longer than ``busy_timeout``."""


@says("store {path!r} has no space left on its disk{because}: nothing was stored; free space, then retry")
class StoreFullError(StoreError):
    """The disk, or the quota of its user, has no space for the write; nothing was stored."""


@says(
    "store {path!r} could not open a file{because}: raise the limit (ulimit -n, LimitNOFILE in systemd), or close "
    "stores, connections and files, then retry"
)
class StoreDescriptorsError(StoreError):
    """Too many files are open for the store to open its own."""


@says("store {path!r} stopped after a failed write{because}: check the disk, then close and reopen it")
class StoreFailedError(StoreError):
    """A write or sync failed and what reached the disk is unknown: the store refuses work until reopened."""


@says("store {path!r} is not at its path any more{because}: nothing more is stored; reopen what is there now")
class StoreGoneError(StoreFailedError):
    """The store was removed, moved or replaced while it was open: further writes would be lost."""


@says("store {path!r} is closed{because}: open it again")
class StoreClosedError(StoreError):
    """The store was closed before or during the operation."""


@says("store {path!r} was opened before this process forked{because}: open it again in the child")
class StoreForkedError(StoreError):
    """The process forked with the store open; the child must not use its parent's connection."""


@says(
    "store {path!r} was opened on another event loop than the one that uses it now{because}: call jet.clone() or "
    "pelton.open on this loop, or use pelton.sync, whose handles can be shared by threads"
)
class WrongLoopError(StoreError):
    """A handle was used on another event loop, in this thread or another, than the one its store was opened on."""


@says("store {path!r} was written by a newer Pelton{because}: upgrade Pelton to open it")
class StoreVersionError(StoreError):
    """The store was written by a newer Pelton: its schema is `found`, this release knows up to `known`."""

    def __init__(self, path: str, found: int, known: int) -> None:
        self.found: int = found
        self.known: int = known
        super().__init__(path, f"its schema is {found}, this release knows up to {known}")


@says("{path!r} is no Pelton store{because}: check the path; the file was left untouched")
class NotAStoreError(StoreError):
    """The file is something else, or damaged at its head."""


@says("store {path!r} does not open with this key{because}; nothing was changed")
class StoreKeyError(StoreError):
    """The store is encrypted and the key is missing or wrong, or it is plain and a key was given."""


@says("store {path!r} is read-only{because}: open it writable, or check the rights of the file and folder")
class StoreReadOnlyError(StoreError):
    """A write to a store that was opened read-only, or could only be opened so."""


@says("store {path!r} is not the one to write to{because}")
class StoreStandbyError(StoreError):
    """It is a standby, or was replaced by its standby (`pelton copy --follow`, `pelton promote`)."""


@says("store {path!r} cannot be opened with these settings{because}: change them, or move the store")
class StoreSettingsError(StoreError):
    """The store, or its file system, does not support the settings given to `open`."""


# Errors that retries do not cure: whatever waits ends with the error. Except after a wrong event loop, the store
# has to be opened again.
FINAL_ERRORS: Final = (
    StoreStandbyError,
    StoreFailedError,
    StoreClosedError,
    StoreForkedError,
    WrongLoopError,
    StoreKeyError,
    StoreVersionError,
    NotAStoreError,
)


@says("no server of {path!r} can be reached{because}: check the address, and that nats-server runs there")
class ServerUnreachableError(StoreError):
    """No server of the cluster answers, or none has for too long."""


@says("{path!r} refuses the connection{because}: check user, password, token, credentials and certificates")
class ServerRefusedError(StoreError):
    """A server answers but refuses the connection."""


@says("{path!r} forbids this{because}: allow the user to publish and subscribe there (docs/guides/servers/cluster.md)")
class ServerPermissionError(ServerRefusedError):
    """The connection is accepted, but lacks permission for a required subject."""


@says("{path!r} gave no answer{because}: whether the request took effect is unknown; check, then retry")
class ServerTimeoutError(StoreError):
    """No answer came: whether the request took effect is unknown."""


@says("{path!r} has no usable JetStream{because}: start it with -js, and check account and version")
class JetStreamMissingError(StoreError):
    """The server has no JetStream, not for this account, or is too old."""


@says(
    "consumer {consumer!r} of stream {stream!r} was silent for {seconds:g} s, its heartbeats were missed: check "
    "that it exists and its server runs, then subscribe again"
)
class HeartbeatMissedError(PeltonError):
    """A push consumer was silent for `seconds`: its sender is gone or unreachable."""

    stream: str
    consumer: str
    seconds: float


@says("store {path!r} holds a damaged configuration{because}: everything else can be used; save it with pelton.salvage")
class CorruptConfigError(StoreError):
    """The configuration of a `stream`, or of a `consumer` of it, is damaged; its messages need not be."""

    def __init__(self, stream: str, consumer: str = "", path: str = "") -> None:
        self.stream: str = stream
        self.consumer: str = consumer
        super().__init__(path, f"stream {stream!r}" + (f", consumer {consumer!r}" if consumer else ""))


@says("store {path!r} holds a damaged message{because}: it is never delivered; publish or restore it again")
class CorruptMessageError(StoreError):
    """The stored bytes of message `seq` of `stream` do not match their checksum; it is set aside, never delivered."""

    def __init__(self, stream: str, seq: int, path: str = "") -> None:
        self.stream: str = stream
        self.seq: int = seq
        super().__init__(path, f"stream {stream!r}, sequence {seq}, checksum mismatch")


# --- errors of buckets: a bucket or key does not exist, or already exists


class BucketError(PeltonError):
    """A bucket cannot do what was asked; `bucket` names it."""

    def __init__(self, bucket: str, text: str) -> None:
        self.bucket = bucket
        super().__init__(text)


@says("there is no bucket {bucket!r}: check its name, or create it with {made_by}")
class BucketNotFoundError(BucketError):
    """There is no bucket of this name; `made_by` is the method that creates one."""

    bucket: str
    made_by: str = "create_bucket"


class BucketKeyNotFoundError(BucketError, KeyError):
    """The bucket holds no such `key`, or (`revision` not 0) no such revision of it."""

    key: str
    revision: int

    def __init__(self, bucket: str, key: str, revision: int) -> None:
        self.key, self.revision = key, revision
        at = f" at revision {revision}" if revision else ""
        super().__init__(
            bucket, f"bucket {bucket!r} holds nothing under {key!r}{at}: it was never written, deleted, or has expired"
        )

    def __str__(self) -> str:
        # A KeyError would show the message in quotes.
        return str(self.args[0])


@says("bucket {bucket!r} already holds {key!r}: update it from its revision, or put it")
class BucketKeyExistsError(BucketError):
    """The `key` already exists."""

    bucket: str
    key: str


class BucketDecodeError(BucketError, ValueError):
    """The value of a `key` at a `revision` does not fit the type, or the codec, that the bucket was opened with."""

    key: str
    revision: int

    def __init__(self, bucket: str, key: str, revision: int, why: str) -> None:
        self.key, self.revision = key, revision
        super().__init__(
            bucket,
            f"bucket {bucket!r}, key {key!r} at revision {revision}: {why}. It was written differently: put it again, "
            f"or open the bucket as it was written; a watch skips it with resume_from_revision={revision + 1}",
        )


# --- errors of object stores: an object is missing, cannot be created, or is not what was put


class ObjectError(BucketError):
    """An object cannot be read or created; `bucket` and `name` say which."""

    def __init__(self, bucket: str, name: str, text: str) -> None:
        self.name = name
        super().__init__(bucket, f"object {name!r} of {bucket!r}: {text}")


class ObjectNotFoundError(ObjectError, KeyError):
    """There is no object of this name, or it is deleted."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(bucket, name, "it does not exist: it was never put, is deleted, or has expired")

    def __str__(self) -> str:
        # A KeyError would show the message in quotes.
        return str(self.args[0])


@says("object {name!r} of {bucket!r}: it already exists: delete it first, or choose another name")
class ObjectExistsError(ObjectError):
    """The name already belongs to another object."""

    bucket: str
    name: str


class ObjectLinkError(ObjectError):
    """A link cannot be created to, or followed from, this object."""


class ObjectChangedError(ObjectError):
    """The object was replaced or deleted while it was read, or cleaned up while it was put: retry."""


class ObjectDamagedError(ObjectError):
    """The object is not what was put: its digest differs, parts are missing, or its metadata is invalid."""


# --- errors of locks and semaphores


class LockError(PeltonError):
    """A lock or semaphore failed; `lock` names it."""

    def __init__(self, lock: str, text: str) -> None:
        self.lock = lock
        super().__init__(text)


@says("{lock} could not be acquired within {timeout:g} s: others hold it; wait longer or do without")
class LockTimeoutError(LockError, TimeoutError):
    """The lock could not be acquired within `timeout` seconds; nothing is held."""

    lock: str
    timeout: float


@says("{lock} was lost while held with token {token}{because}: others may hold it, so write nothing")
class LockLostError(LockError):
    """The lease with the fencing `token` was lost: another holder may have the lock by now, so stop."""

    lock: str
    token: int
    reason: str = ""


@says("{lock} is not held here: it was already released, or never acquired by this caller")
class LockNotHeldError(LockError):
    """The lock cannot be released because it is not held, or not any more."""

    lock: str


@says(
    "{lock} is already held by this caller (token {token}), which would wait for itself: locks are not "
    "re-entrant; pass on what acquire() returned instead"
)
class LockReentryError(LockError):
    """The caller already holds this lock, with `token`, and would wait for itself for ever."""

    lock: str
    token: int


# --- errors of elections


class ElectionError(PeltonError):
    """An election failed; `election` names it."""

    def __init__(self, election: str, text: str) -> None:
        self.election = election
        super().__init__(text)


@says(
    "election {election!r}: the term with token {token} was lost: {reason}; another candidate may lead by now, so "
    "write nothing; campaign again"
)
class TermLostError(ElectionError):
    """The term with the fencing `token` was lost: another candidate may lead by now, so stop."""

    election: str
    token: int
    reason: str


# --- errors of a transaction that a program holds open, and of the SQL in it


class TransactionError(PeltonError):
    """A transaction was misused, or was rolled back; `reason` says what happened."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"transaction: {reason}")


class TransactionTimeoutError(TransactionError):
    """A transaction held the writer for longer than `seconds`, and was rolled back."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"it was open for longer than {seconds:g} s and was rolled back, because all other writes wait "
            "for it: do slow work before its first operation, or give it more time with transaction(timeout=...)"
        )


class SnapshotTimeoutError(TransactionError):
    """A block of ``jet.read()`` was open for longer than `seconds`, and was ended."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"the reads were open for longer than {seconds:g} s and were ended, because the store's log grows while a "
            "snapshot is held: read less in one block, or give it more time with read(timeout=...)"
        )


class SqlError(PeltonError):
    """SQLite refused your statement, for `reason`. The transaction continues without it."""

    reason: str
    statement: str

    def __init__(self, reason: str, statement: str) -> None:
        self.reason, self.statement = reason, statement
        shown = " ".join(statement.split())
        super().__init__(f"SQL {shown[:200]!r}: {reason}; the statement changed nothing, the transaction continues")


class SqlConstraintError(SqlError):
    """A statement would break a constraint of your tables: a unique, foreign or checked value."""


class SqlForbiddenError(SqlError):
    """A statement would write Pelton's own tables, end the transaction, or write in ``jet.read()``."""
