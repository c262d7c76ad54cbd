"""Everything Pelton raises, split by whose fault it is::

    PeltonError
    ├── ConfigError (ValueError)         yours: a bad argument, refused at once
    ├── ApiError                         the request, answered with a JetStream error
    │   ├── NotFoundError
    │   │   ├── StreamNotFoundError, ConsumerNotFoundError, MessageNotFoundError
    │   ├── PullRefusedError             the consumer's limits refuse the pull
    │   ├── PinLostError                 another client of the priority group is pinned
    │   ├── BadRequestError
    │   │   ├── TooManyResultsError
    │   │   └── ExpectationError         another client was faster
    │   │       └── WrongLastSequenceError
    │   ├── LimitError                   the stream is full, or the message too big
    │   │   ├── MaxMessagesError, MaxBytesError, MaxMessagesPerSubjectError
    │   │   └── MessageTooLargeError
    │   ├── DirectGetDisabledError       the stream does not allow direct get
    │   └── NoStreamForSubjectError      no stream takes this subject
    ├── HeartbeatMissedError             a push consumer fell silent
    ├── BucketError                      a bucket or a key that does not exist, or already does
    │   ├── BucketNotFoundError, BucketKeyNotFoundError (KeyError), BucketKeyExistsError
    │   ├── BucketDecodeError (ValueError)
    │   └── ObjectError
    │       ├── ObjectNotFoundError (KeyError), ObjectExistsError, ObjectLinkError
    │       ├── ObjectChangedError, ObjectDamagedError
    ├── ElectionError                    an election was stopped
    │   └── TermLostError                this candidate no longer leads
    ├── LockError                        a lock or semaphore
    │   ├── LockTimeoutError (TimeoutError), LockLostError, LockNotHeldError, LockReentryError
    ├── AckError
    │   └── AckRejectedError             the delivery is no longer yours: late, twice, or lost
    ├── StoreError                       the file, the disk, another process, or a cluster's servers
    │   ├── StoreBusyError, StoreFullError, StoreDescriptorsError, StoreClosedError, StoreForkedError
    │   ├── WrongLoopError               used on another event loop than its own
    │   ├── StoreFailedError
    │   │   └── StoreGoneError           the file was removed, moved or replaced while it was open
    │   ├── StoreVersionError, NotAStoreError, StoreKeyError, StoreReadOnlyError, StoreSettingsError, StoreStandbyError
    │   ├── ServerUnreachableError, ServerTimeoutError, JetStreamMissingError
    │   ├── ServerRefusedError
    │   │   └── ServerPermissionError
    │   ├── CorruptConfigError           the disk lost bits of the configuration of a stream or consumer
    │   └── CorruptMessageError          the disk lost bits of one message
    ├── TransactionError                 a transaction was rolled back, or misused
    │   └── TransactionTimeoutError, SnapshotTimeoutError
    ├── SqlError                         a statement of yours
    │   └── SqlConstraintError, SqlForbiddenError
    └── JobError                         a job, or the code that runs it
        ├── PermanentJobError, RetryJob, Snooze, Continue, Cancel, Discard  a job says how it ended
        ├── LeaseLostError, JobCancelledError, SignalTimeoutError (TimeoutError)
        ├── UnknownJobError, JobNotFoundError, FlowNotFoundError, JobFailedError
        ├── QueueNotFoundError, QueueInUseError, JobNotMovedError, DuplicateJobError, JobEndedError
        └── JobArgumentsError, JobResultError, JobCrashedError, JobTimeoutError, StepTimeoutError (TimeoutError)

Errors carry their facts as attributes; every message says what happened, to what, and what to do next. All of
them survive pickling, so that they cross process pools.
"""

import re
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform

from pelton.api.error_table import ERRORS, NAMES

E = TypeVar("E", bound="PeltonError")

# Bytes of a client that are no UTF-8, decoded.
_NO_TEXT: Final = re.compile("[\ud800-\udfff]")
_SHOWN: Final = 64

MAXIMUM_MESSAGES: Final = "maximum messages exceeded"
MAXIMUM_BYTES: Final = "maximum bytes exceeded"
MAXIMUM_MESSAGES_PER_SUBJECT: Final = "maximum messages per subject exceeded"


class PeltonError(Exception):
    """The root: catch it to catch everything Pelton raises."""

    _says: ClassVar[str] = ""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[E], args: tuple[object, ...], fields: dict[str, object]) -> E:
    # Constructors take facts and compose the message from them; a copy gets both back unchanged.
    error = kind.__new__(kind, *args)
    # An OSError, such as a TimeoutError, takes its arguments later than others do.
    error.args = args
    error.__dict__.update(fields)
    return error


@dataclass_transform(eq_default=False)
def says(sentence: str) -> Callable[[type[E]], type[E]]:
    """Give an error the constructor of the fields that its class declares; they fill the sentence, its message.

    A class that declares none, or has a constructor, has the sentence alone, for the constructor of its parent.
    ``{because}`` is the field ``reason`` in brackets, and ``{keyed}`` the field ``key``, if they are not empty.
    """

    def declare(kind: type[E]) -> type[E]:
        kind._says = sentence
        if "__init__" in kind.__dict__ or not kind.__annotations__:
            return kind
        fields = []
        for name, hint in kind.__annotations__.items():
            default = kind.__dict__.get(name, Parameter.empty)
            fields.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=hint, default=default))
            if default is not Parameter.empty:
                delattr(kind, name)
        signature = Signature(fields, return_annotation=None)

        def construct(self: E, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            facts = given.arguments
            self.__dict__.update(facts)
            reason, key = facts.get("reason"), facts.get("key")
            because, keyed = f" ({reason})" if reason else "", f" (key {key!r})" if key else ""
            super(PeltonError, self).__init__(self._says.format(**facts, because=because, keyed=keyed))

        own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        construct.__signature__ = signature.replace(parameters=[own, *fields])  # type: ignore[attr-defined]  # what inspect and documentation read
        kind.__init__ = construct  # type: ignore[assignment, method-assign]  # it is of the declared fields
        return kind

    return declare


class ConfigError(PeltonError, ValueError):
    """An argument or a configuration is invalid; nothing was done."""


def brief(text: str) -> str:
    """Return a text quoted for an error, cut if it is long."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


# The server gives these the code of its own failures, although the request is at fault.
_CONFIGURED: Final = "change what it names; if that is not yours, check the health of the server or store"
_ADVICE: Final = {
    "JSStreamInvalidConfigF": "change the configuration; repeating it gives the same answer",
    "JSStreamCreateErrF": _CONFIGURED,
    "JSStreamUpdateErrF": _CONFIGURED,
    "JSConsumerCreateErrF": _CONFIGURED,
}

# --- the JetStream API ----------------------------------------------------------------------------


class ApiError(PeltonError):
    """A JetStream error: `code`, `err_code`, `description` as on the wire, `constant` its name in the table.

    `stream`, `consumer` and `seq` name what it is about, if known ("" and None otherwise).
    """

    stream: str
    consumer: str
    advice: str

    next_step: ClassVar[str] = "check the health and the limits of the server or store, then retry"

    def __init__(
        self,
        code: int,
        err_code: int,
        description: str,
        *,
        stream: str = "",
        consumer: str = "",
        seq: int | None = None,
    ) -> None:
        self.code = code
        self.err_code = err_code
        # Parts of it may be bytes of a client that are no UTF-8, which must not break the answer: as in Go's JSON.
        self.description: str = (
            description if description.isascii() else _NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", description)
        )
        self.constant: str = NAMES.get(err_code, "")
        self.stream = stream
        self.consumer = consumer
        self.seq = seq
        self.advice = _ADVICE.get(self.constant, "")
        super().__init__(self._sentence())

    def locate(self, *, stream: str = "", consumer: str = "") -> None:
        """Set the stream and consumer it is about, if they were not known."""
        if (stream and not self.stream) or (consumer and not self.consumer):
            self.stream, self.consumer = self.stream or stream, self.consumer or consumer
            self.args: tuple[Any, ...] = (self._sentence(),)

    def advise(self, advice: str) -> None:
        """Replace the advice of its class."""
        self.advice = advice
        self.args = (self._sentence(),)

    def _sentence(self) -> str:
        where = _about(self.stream, self.consumer)
        return f"{self.description}{where} [{self.code}, {self.err_code}]: {self.advice or self.next_step}"


def _about(stream: str, consumer: str) -> str:
    named = (("stream", stream), ("consumer", consumer))
    parts = [f"{what} {brief(name)}" for what, name in named if name]
    return f" ({', '.join(parts)})" if parts else ""


class NotFoundError(ApiError):
    """Something named in the request does not exist."""

    next_step = "check the name, or create it first"


class StreamNotFoundError(NotFoundError):
    """There is no stream of this name."""

    next_step = "check its name, or create it with create_stream"


class ConsumerNotFoundError(NotFoundError):
    """There is no consumer of this name: never created, deleted, or ephemeral and unused for too long."""

    next_step = "create it with create_consumer, with a durable_name if it has to outlive its clients"


class MessageNotFoundError(NotFoundError):
    """The stream holds no such message (any more)."""

    next_step = "stream.info() tells which sequences it holds; limits, purges and acks remove messages"


class BadRequestError(ApiError):
    """The request contradicts itself or what exists."""

    next_step = "change the request; repeating it gives the same answer"


class ExpectationError(BadRequestError):
    """The publisher's expectation of the stream does not hold; nothing was stored."""

    next_step = "nothing was stored: read the current state, decide again, publish again"


class WrongLastSequenceError(ExpectationError):
    """The last sequence, of the stream or of the subject, is not the expected one; `seq` is the actual one."""


class LimitError(ApiError):
    """A limit of the stream, the account or the store refuses the request."""

    next_step = "consume, delete or purge first, or raise the limit"


class MaxMessagesError(LimitError):
    """The stream holds ``max_msgs`` messages and discards new ones."""


class MaxBytesError(LimitError):
    """The stream holds ``max_bytes`` bytes and discards new messages."""


class MaxMessagesPerSubjectError(LimitError):
    """The subject holds ``max_msgs_per_subject`` messages and the stream discards new ones."""

    next_step = "wait until a message of this subject is consumed or deleted, or raise max_msgs_per_subject"


class MessageTooLargeError(LimitError):
    """The message is larger than ``max_msg_size``, or than any message the server accepts."""

    next_step = (
        "keep large values in an object store and publish their name, or raise the stream's max_msg_size, "
        "or the server's max_payload"
    )


class TooManyResultsError(BadRequestError):
    """More subjects match than one request may return (1,024); nothing was read."""

    next_step = "ask for fewer subjects at a time, or read them with get_messages or a consumer"


class DirectGetDisabledError(ApiError):
    """This `stream` does not answer direct gets (on NATS: "no responders")."""

    next_step = "allow them with update_stream(name, allow_direct=True)"

    def __init__(self, stream: str) -> None:
        super().__init__(503, 0, "the stream does not allow direct get", stream=stream)


class NoStreamForSubjectError(ApiError):
    """No stream takes this `subject` (on NATS: "no responders")."""

    next_step = "create a stream whose subjects match it, or check the spelling"

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(503, 0, f"no stream takes the subject {brief(subject)}")


class PullRefusedError(ApiError):
    """A limit refuses this pull: batch, bytes, time, or waiting pulls; or a message is larger than it allows."""

    next_step = "ask for less, or raise the consumer's max_batch, max_expires, max_bytes or max_waiting"


class PinLostError(ApiError):
    """The pull carried a pin id, but another client has been pinned since (ADR-42)."""

    next_step = "pull again without an id: the client waits until it is pinned again"


_BY_CONSTANT: Final[dict[str, type[ApiError]]] = {
    "JSStreamNotFoundErr": StreamNotFoundError,
    "JSConsumerNotFoundErr": ConsumerNotFoundError,
    "JSConsumerDoesNotExist": ConsumerNotFoundError,
    "JSNoMessageFoundErr": MessageNotFoundError,
    "JSSequenceNotFoundErrF": MessageNotFoundError,
    "JSStreamWrongLastSequenceErrF": WrongLastSequenceError,
    "JSStreamWrongLastSequenceConstantErr": WrongLastSequenceError,
    "JSStreamWrongLastMsgIDErrF": ExpectationError,
    "JSStreamNotMatchErr": ExpectationError,
    "JSStreamSequenceNotMatchErr": ExpectationError,
    "JSStreamMinLastSeqErr": ExpectationError,
    "JSStreamMessageExceedsMaximumErr": MessageTooLargeError,
    "JSStreamHeaderExceedsMaximumErr": MessageTooLargeError,
    "JSAccountResourcesExceededErr": LimitError,
    "JSInsufficientResourcesErr": LimitError,
    "JSMemoryResourcesExceededErr": LimitError,
    "JSStorageResourcesExceededErr": LimitError,
    "JSMaximumStreamsLimitErr": LimitError,
    "JSMaximumConsumersLimitErr": LimitError,
    "JSStreamMaxStreamBytesExceeded": LimitError,
    "JSStreamTooManyRequests": LimitError,
    "JSAtomicPublishTooManyInflight": LimitError,
    "JSBatchPublishTooManyInflight": LimitError,
}
# One code stands for every full stream; only its text tells which limit was reached.
_BY_TEXT: Final[dict[str, type[ApiError]]] = {
    MAXIMUM_MESSAGES: MaxMessagesError,
    MAXIMUM_BYTES: MaxBytesError,
    MAXIMUM_MESSAGES_PER_SUBJECT: MaxMessagesPerSubjectError,
}
_CONFLICT: Final = 409
_PULL_EXCEEDS: Final = ("Exceeded Max", "Message Size Exceeds MaxBytes")
_BY_CODE: Final[dict[int, type[ApiError]]] = {
    400: BadRequestError,
    404: NotFoundError,
    408: BadRequestError,
    409: BadRequestError,
    412: BadRequestError,
    413: TooManyResultsError,
    423: PinLostError,
    429: LimitError,
}


def api_error(constant: str, *, stream: str = "", consumer: str = "", **placeholders: object) -> ApiError:
    """Return the exception of a row of the error table; `placeholders` fill its text, `seq` also its attribute.

    Raises KeyError for an unknown constant or a missing placeholder: both are bugs of the caller.
    """
    code, err_code, text = ERRORS[constant]
    seq = placeholders.get("seq")
    return from_reply(
        code,
        err_code,
        text.format(**placeholders),
        stream=stream,
        consumer=consumer,
        seq=seq if isinstance(seq, int) else None,
    )


def from_reply(
    code: int, err_code: int, description: str, *, stream: str = "", consumer: str = "", seq: int | None = None
) -> ApiError:
    """Return the exception of an error received from a server, of the class that fits it best."""
    constant = NAMES.get(err_code, "")
    if code == _CONFLICT and description.startswith(_PULL_EXCEEDS):
        return PullRefusedError(code, err_code, description, stream=stream, consumer=consumer)
    kind = _BY_CONSTANT.get(constant) or _BY_TEXT.get(description) or _BY_CODE.get(code, ApiError)
    if seq is None and constant == "JSStreamWrongLastSequenceErrF":
        tail = description.rpartition(" ")[2]
        seq = int(tail) if tail.isdecimal() else None
    return kind(code, err_code, description, stream=stream, consumer=consumer, seq=seq)


NO_PEERS: Final = 10005
_PASSING: Final = frozenset(
    {
        NO_PEERS,  # no suitable peers for placement: servers have just started; or there are none
        10004,  # incomplete results: a server is away
        10007,  # JetStream cluster not assigned to this server
        10008,  # JetStream system temporarily unavailable: no leader yet
        10009,  # JetStream cluster can not handle request: no leader any more
        10118,  # stream is offline
        10119,  # consumer is offline
        10158,  # duplicate message id is in process: the first of two is still in flight
    }
)


def is_passing(error: Exception) -> bool:
    """Whether the error is transient, such as during a leader election: nothing was done, so retry."""
    return isinstance(error, ApiError) and error.err_code in _PASSING


# --- acknowledgements -----------------------------------------------------------------------------


class AckError(PeltonError):
    """An acknowledgement had no effect."""


@says("ack of message {seq} (stream {stream!r}, consumer {consumer!r}) rejected: {reason}")
class AckRejectedError(AckError):
    """The delivery is no longer yours: its ack wait passed, it was already acked, or its lease was lost.

    ``reason`` says which of these, and what is known of the message.
    """

    stream: str
    consumer: str
    seq: int
    reason: str
