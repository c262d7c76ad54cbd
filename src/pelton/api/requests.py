"""Every administrative verb of the JetStream API as one row: request, reply, API subject (ADR-1).

A request struct knows its reply by type: ``class StreamInfoRequest(Request[StreamInfo])`` makes
``await backend.call(StreamInfoRequest(...))`` a `StreamInfo`. Names that travel in the API subject and not in
the JSON body are listed in ``_subject_fields``. `VERBS` holds the rows; `codec.py` encodes and decodes
them. To add a verb, write one struct and one row here, and one handler.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeVar

import msgspec

from pelton.api.config import ConsumerConfig, StreamConfig
from pelton.api.direct import StoredMessage
from pelton.api.info import AccountInfo, ConsumerInfo, StreamInfo, WireMessage
from pelton.api.times import ZERO, ZERO_TIME, Duration, HasDurations, always

R = TypeVar("R")
S = TypeVar("S")


class Request(msgspec.Struct, Generic[R], kw_only=True, frozen=True, omit_defaults=True):
    """A request whose reply is an `R`."""

    _subject_fields: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def answered_by(cls, handler: Callable[[S, Self], R]) -> tuple[type[Self], Callable[[S, Any], Any]]:
        """Return an entry of a table of handlers: the handler takes this request and returns its reply."""
        return cls, handler


# --- replies --------------------------------------------------------------------------------------


class Success(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The request was carried out."""

    success: bool = always(True)


class PurgeReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How many messages were removed."""

    success: bool = always(True)
    purged: int = always(0)


class MsgGetReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The message asked for."""

    message: WireMessage


class Page(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One page of a list of `total` entries; it starts at `offset` and holds up to `limit`."""

    total: int = always(0)
    offset: int = always(0)
    limit: int = always(0)


class StreamNamesReply(Page, kw_only=True):
    """Names of streams."""

    streams: tuple[str, ...] = always(())


class StreamListReply(Page, kw_only=True):
    """Streams with their configuration and state."""

    streams: tuple[StreamInfo, ...] = always(())


class ConsumerNamesReply(Page, kw_only=True):
    """Names of a stream's consumers."""

    consumers: tuple[str, ...] = always(())


class ConsumerListReply(Page, kw_only=True):
    """A stream's consumers with their configuration and state."""

    consumers: tuple[ConsumerInfo, ...] = always(())


class PauseReply(HasDurations, msgspec.Struct, kw_only=True, omit_defaults=True):
    """Whether a consumer is paused, until when, and for how much longer."""

    paused: bool = always(False)
    pause_until: str = always(ZERO_TIME)
    pause_remaining: Duration = ZERO


class ConsumerResetReply(ConsumerInfo, kw_only=True):
    """The consumer after it was reset; `reset_seq` is the sequence it delivers next."""

    reset_seq: int = always(0)


class UnpinReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The group has no pinned client now."""


class Unsettled(msgspec.Struct, frozen=True, gc=False):
    """A delivered, unsettled message. `due` is when it may be redelivered, `waits` if it was given back until then.

    `cause` is that of the ack that gave it back.
    """

    seq: int
    num_delivered: int
    due: int
    waits: bool
    cause: int = 0


class ConsumerUnsettledReply(Page, kw_only=True):
    """One page of unsettled messages."""

    messages: tuple[Unsettled, ...] = always(())


class UnsettledGroup(msgspec.Struct, frozen=True, gc=False):
    """How many unsettled messages were given back for one `cause` and are due by now, or not.

    `first_seq` is the lowest sequence among them, `first_due` the earliest time.
    """

    cause: int
    is_due: bool
    number: int
    first_seq: int
    first_due: int


class UnsettledGroupsReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The unsettled messages that were given back, in groups, and each of the others.

    `passed`: the consumer has delivered everything that it wants up to this sequence of the stream; maybe even more.
    """

    taken: tuple[Unsettled, ...] = always(())
    groups: tuple[UnsettledGroup, ...] = always(())
    passed: int = always(0)


class StreamFillReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The last sequence of the stream that was filled."""

    last_seq: int = always(0)


class LastHeaders(msgspec.Struct, frozen=True, gc=False):
    """The last message of a subject without its payload; `hdrs` is None if it has no headers."""

    subject: str
    seq: int
    hdrs: bytes | None


class StreamLastHeadersReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Last messages, in the order of their subjects; fewer than `limit` means there are no more."""

    heads: tuple[LastHeaders, ...] = always(())


class StreamLastMessagesReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Last messages, and by how much the clock has jumped since each was stored; `after` is empty at the end."""

    messages: tuple[StoredMessage, ...] = ()
    jumped_ns: tuple[int, ...] = ()
    after: str = ""


class FindMessagesReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Messages by sequence, how many were `looked_at`, and where to go on, 0 at the end; `total` match the filters."""

    messages: tuple[StoredMessage, ...] = ()
    looked_at: int = 0
    next_begin: int = 0
    total: int = 0


class SubjectTotalsReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Numbers of messages, the largest first; None if there are too many subjects to sum them up."""

    totals: dict[str, int] | None = None


class ConsumerBacklog(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many messages a consumer has yet to deliver, and how many are delivered and not settled."""

    stream: str
    consumer: str
    pending: int
    ack_pending: int


class ConsumerBacklogsReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Those of some streams, and the `last_seqs` of those whose messages leave when they are done; ask for the streams
    `after` next, if it is not empty.
    """

    backlogs: tuple[ConsumerBacklog, ...] = ()
    last_seqs: dict[str, int] = {}
    after: str = ""


class MinuteNotesReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is noted of some minutes, oldest first; of others, too, whose places were not written over."""

    notes: tuple[bytes, ...] = ()


# --- requests -------------------------------------------------------------------------------------


class StreamRequest(Request[R], Generic[R], kw_only=True, frozen=True):
    """A request about a stream, which its API subject names."""

    _subject_fields: ClassVar[tuple[str, ...]] = ("stream",)

    stream: str


class ConsumerRequest(Request[R], Generic[R], kw_only=True, frozen=True):
    """A request about a consumer, which its API subject names behind its stream."""

    _subject_fields: ClassVar[tuple[str, ...]] = ("stream", "name")

    stream: str
    name: str


class AccountInfoRequest(Request[AccountInfo], kw_only=True, frozen=True):
    """The account's usage and limits."""


class StreamCreate(Request[StreamInfo], kw_only=True, frozen=True):
    """Create a stream; the same configuration again is no error. The body is the configuration itself."""

    config: StreamConfig
    pedantic: bool = False


class StreamUpdate(Request[StreamInfo], kw_only=True, frozen=True):
    """Replace a stream's configuration as a whole."""

    config: StreamConfig
    pedantic: bool = False


class StreamInfoRequest(Request[StreamInfo], kw_only=True, frozen=True):
    """A stream's configuration and state; `subjects_filter` adds message counts per subject, paged."""

    _subject_fields: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    deleted_details: bool = False
    subjects_filter: str = ""
    offset: int = 0


class StreamNames(Request[StreamNamesReply], kw_only=True, frozen=True):
    """Names of the streams, of those that take `subject` if given."""

    subject: str = ""
    offset: int = 0


class StreamList(Request[StreamListReply], kw_only=True, frozen=True):
    """The streams, those that take `subject` if given."""

    subject: str = ""
    offset: int = 0


class StreamDelete(Request[Success], kw_only=True, frozen=True):
    """Remove a stream, its messages and its consumers."""

    _subject_fields: ClassVar[tuple[str, ...]] = ("name",)

    name: str


class StreamPurge(Request[PurgeReply], kw_only=True, frozen=True):
    """Remove messages: of `filter`, below `seq`, or all but the last `keep` (not with `seq`) (ADR-10)."""

    _subject_fields: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    filter: str = ""
    seq: int = 0
    keep: int = 0


class MsgGet(StreamRequest[MsgGetReply], kw_only=True, frozen=True):
    """A message: by `seq`, the last of a subject, or the first from `seq` or `start_time` on (of a subject filter)."""

    seq: int = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    start_time: str = ""
    no_hdr: bool = False


class MsgDelete(StreamRequest[Success], kw_only=True, frozen=True):
    """Remove one message; its bytes are overwritten unless `no_erase`."""

    seq: int = 0
    no_erase: bool = False


class ConsumerCreate(Request[ConsumerInfo], kw_only=True, frozen=True):
    """Create a consumer or update one; `action` restricts it to either."""

    stream_name: str
    config: ConsumerConfig
    action: Literal["", "create", "update"] = ""
    pedantic: bool = False


class ConsumerInfoRequest(ConsumerRequest[ConsumerInfo], kw_only=True, frozen=True):
    """A consumer's configuration and state."""


class ConsumerNames(StreamRequest[ConsumerNamesReply], kw_only=True, frozen=True):
    """Names of a stream's consumers."""

    offset: int = always(0)


class ConsumerList(StreamRequest[ConsumerListReply], kw_only=True, frozen=True):
    """A stream's consumers."""

    offset: int = always(0)


class ConsumerDelete(ConsumerRequest[Success], kw_only=True, frozen=True):
    """Remove a consumer; its unacknowledged messages stay in the stream."""


class ConsumerPause(ConsumerRequest[PauseReply], kw_only=True, frozen=True):
    """Pause delivery until a time; empty or past: resume."""

    pause_until: str = ""


class ConsumerReset(ConsumerRequest[ConsumerResetReply], kw_only=True, frozen=True):
    """Forget all deliveries, and continue from `seq`; 0: from the first unacknowledged message."""

    seq: int = 0


class ConsumerUnpin(ConsumerRequest[UnpinReply], kw_only=True, frozen=True):
    """Take the pin from the client that holds it, so that another gets it (ADR-42)."""

    group: str = always("")


class ConsumerUnsettled(ConsumerRequest[ConsumerUnsettledReply], kw_only=True, frozen=True):
    """Pelton's own: the messages delivered and not settled, by sequence; NATS has no such verb.

    Only some `sequences`, if any are given. Only those given back for a cause from the first to the last of `causes`,
    -1 for those that were not; due later than `due_after`, at `due_upto` at the latest if given. `by_due`: the earliest
    first, those behind the time and the sequence of `after`; `descending`: the other way round.
    """

    offset: int = 0
    sequences: tuple[int, ...] = ()
    causes: tuple[int, int] | None = None
    due_after: int = 0
    due_upto: int = 0
    by_due: bool = False
    descending: bool = False
    after: tuple[int, int] | None = None
    limit: int = 1000


class UnsettledGroups(ConsumerRequest[UnsettledGroupsReply], kw_only=True, frozen=True):
    """Pelton's own: how many messages were given back and are not settled, by cause, and by whether they are due.

    And which were not given back.
    """


class StreamFill(StreamRequest[StreamFillReply], kw_only=True, frozen=True):
    """Pelton's own: store messages of another stream under their own sequences and with their own times.

    Those that are not later than the last one are left out, and sequences up to `last_seq` are skipped, so it can be
    repeated. `schedules` are stored messages whose schedules begin to run now.
    """

    messages: tuple[StoredMessage, ...] = ()
    last_seq: int = 0
    schedules: tuple[int, ...] = ()


class StreamLastHeaders(StreamRequest[StreamLastHeadersReply], kw_only=True, frozen=True):
    """Pelton's own: the last message of each subject that matches, at most `limit` from `after` on; payloads unread."""

    filters: tuple[str, ...]
    after: str = ""
    limit: int = 1000


class StreamLastMessages(StreamRequest[StreamLastMessagesReply], kw_only=True, frozen=True):
    """Pelton's own: as `StreamLastHeaders`, with their payloads; an ephemeral consumer would be written twice."""

    filters: tuple[str, ...]
    after: str = ""
    limit: int = 256


class FindMessages(StreamRequest[FindMessagesReply], kw_only=True, frozen=True):
    """Pelton's own: messages from `begin` on that match a filter and contain one of the texts, if any are given.

    It ends at `limit`, or after about `within` seconds. A cluster has to read them all to find those that contain it.
    `upto`: the last sequence that is looked at, 0: that of the stream. `untaken`: only those that no consumer has
    delivered and not settled; a cluster does not know them.
    """

    filters: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    begin: int = 1
    within: float = 1.0
    limit: int = 25
    upto: int = 0
    untaken: bool = False

    def is_in(self, data: bytes) -> bool:
        """Whether a payload contains one of the texts, or none are given."""
        return not self.contains or any(text.encode() in data for text in self.contains)


class SubjectTotals(StreamRequest[SubjectTotalsReply], kw_only=True, frozen=True):
    """Pelton's own: the numbers of messages by what stands for the `>` that ends a filter, up to the token `until`."""

    filters: tuple[str, ...]
    until: str
    limit: int = 25


class ConsumerBacklogs(Request[ConsumerBacklogsReply], kw_only=True, frozen=True):
    """Pelton's own: the backlogs of all consumers, some streams at a time, but for the streams that Pelton fills."""

    after: str = ""


class MinuteNote(Request[Success], kw_only=True, frozen=True):
    """Pelton's own: note something of a `minute` since 1970, instead of what is noted there, or `MINUTES` before."""

    MINUTES: ClassVar[int] = 1500

    minute: int
    data: bytes


class MinuteNotes(Request[MinuteNotesReply], kw_only=True, frozen=True):
    """Pelton's own: what is noted of the minutes from `first` to `last`."""

    first: int
    last: int


class Verb(msgspec.Struct, frozen=True):
    """One row: the subject below the API prefix, and the ``type`` its replies carry."""

    name: str
    request: type[Request[Any]]
    reply: type[msgspec.Struct]
    subject: str
    reply_type: str


def _verb(name: str, request: type[Request[Any]], reply: type[msgspec.Struct], names: str, kind: str) -> Verb:
    subject = ".".join([name, *(f"{{{field}}}" for field in names.split())])
    return Verb(name, request, reply, subject, f"io.nats.jetstream.api.v1.{kind}_response")


VERBS: Final = (
    _verb("INFO", AccountInfoRequest, AccountInfo, "", "account_info"),
    _verb("STREAM.CREATE", StreamCreate, StreamInfo, "name", "stream_create"),
    _verb("STREAM.UPDATE", StreamUpdate, StreamInfo, "name", "stream_update"),
    _verb("STREAM.INFO", StreamInfoRequest, StreamInfo, "name", "stream_info"),
    _verb("STREAM.NAMES", StreamNames, StreamNamesReply, "", "stream_names"),
    _verb("STREAM.LIST", StreamList, StreamListReply, "", "stream_list"),
    _verb("STREAM.DELETE", StreamDelete, Success, "name", "stream_delete"),
    _verb("STREAM.PURGE", StreamPurge, PurgeReply, "name", "stream_purge"),
    _verb("STREAM.MSG.GET", MsgGet, MsgGetReply, "stream", "stream_msg_get"),
    _verb("STREAM.MSG.DELETE", MsgDelete, Success, "stream", "stream_msg_delete"),
    _verb("CONSUMER.CREATE", ConsumerCreate, ConsumerInfo, "stream name", "consumer_create"),
    _verb("CONSUMER.INFO", ConsumerInfoRequest, ConsumerInfo, "stream name", "consumer_info"),
    _verb("CONSUMER.NAMES", ConsumerNames, ConsumerNamesReply, "stream", "consumer_names"),
    _verb("CONSUMER.LIST", ConsumerList, ConsumerListReply, "stream", "consumer_list"),
    _verb("CONSUMER.PAUSE", ConsumerPause, PauseReply, "stream name", "consumer_pause"),
    _verb("CONSUMER.RESET", ConsumerReset, ConsumerResetReply, "stream name", "consumer_reset"),
    _verb("CONSUMER.UNPIN", ConsumerUnpin, UnpinReply, "stream name", "consumer_unpin"),
    _verb("CONSUMER.DELETE", ConsumerDelete, Success, "stream name", "consumer_delete"),
)

VERB_OF: Final[dict[type[Request[Any]], Verb]] = {verb.request: verb for verb in VERBS}
"""The row of each request type."""
