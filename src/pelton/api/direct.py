"""Direct get (ADR-31): reads messages by sequence, subject or time, one or many.

Light structs, as on every hot path. A request gives the start, or the subjects whose last
messages are wanted; a reply holds the messages, and what the server reports at the end of a batch.

**Direct gets as they travel (ADR-31): messages come unchanged, with their metadata in headers added behind theirs.**
One message is one reply. Of many, each is its own reply to the same request, and a status message comes last.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from pelton.api import headers
from pelton.api import headers as header_blocks
from pelton.api.errors import ApiError, PeltonError, from_reply
from pelton.api.headers import Headers
from pelton.api.json_values import GoJsonError, StructReader
from pelton.api.times import parse_rfc3339, rfc3339
from pelton.subjects import is_subject

MAX_SUBJECTS = 1024
"""The most subjects that one `multi_last` returns."""

MAX_BYTES = 64 * 1024 * 1024
"""The size limit of a batch without `max_bytes`; a server may be configured otherwise."""


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as stored in a stream. `hdrs` is the encoded header block, empty for none.

    `time_ns` is when it was stored, in wall nanoseconds since the epoch.
    """

    subject: str
    seq: int
    time_ns: int
    hdrs: bytes
    data: bytes

    @property
    def headers(self) -> Headers:
        """The headers, decoded; empty when the message has none."""
        return header_blocks.decode(self.hdrs) if self.hdrs else Headers()

    @property
    def time(self) -> str:
        """When it was stored, as RFC 3339 text."""
        return rfc3339(self.time_ns)


class DirectGet(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """What to read. `start_time` and `up_to_time` are RFC 3339 text.

    Exactly one of these: `seq`, or the first of `start_time`; `next_by_subj`, the first of a subject or filter,
    from either on; `last_by_subj`, the last of one; `multi_last`, the last message of each subject that matches,
    as it was at `up_to_seq`, or before `up_to_time`, in the order of their sequences, from `seq` on.

    With `batch` the following messages come too, and a removed sequence stands for the next. A batch ends
    with the message that reaches `max_bytes` of subjects, headers and payloads (0: 64 MiB).
    """

    seq: int = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    start_time: str = ""
    batch: int = 0
    max_bytes: int = 0
    multi_last: tuple[str, ...] = ()
    up_to_seq: int = 0
    up_to_time: str = ""


class DirectReply(msgspec.Struct, gc=False):
    """The messages read; of a batch also how many more match (`num_pending`) after `last_seq`, the last one read.

    `up_to_seq` is the position of a `multi_last`: ask for the rest with it, and it is of the same moment.
    """

    messages: list[StoredMessage]
    num_pending: int = 0
    last_seq: int = 0
    up_to_seq: int = 0


END: Final = 204
NOT_FOUND: Final = 404
BAD_REQUEST: Final = 408
BAD_REQUEST_CODE: Final = 10003

_ADDED: Final = f"\r\n{headers.STREAM}: ".encode()
_BATCHED: Final = f"\r\n{headers.NUM_PENDING}: ".encode()
_NO_HEADERS: Final = b"NATS/1.0\r\n\r\n"
_encode: Final = msgspec.json.Encoder().encode


class WireGet(DirectGet, kw_only=True, frozen=True):
    """A request as a client sends it, which may ask for bare payloads."""

    no_hdr: bool = False


_read: Final = StructReader(WireGet)


class DirectFrame(msgspec.Struct, frozen=True):
    """One reply: a header block, empty if there is none, and the payload."""

    block: bytes
    data: bytes = b""


def direct_question(subject: str, request: DirectGet) -> tuple[str, bytes]:
    """Return subject and payload: the last message of a subject is requested in the API subject, for permissions."""
    last = request.last_by_subj
    if last and is_subject(last) and request == DirectGet(last_by_subj=last):
        return f"{subject}.{last}", b""
    return subject, _encode(request)


def direct_request(subject: str, body: bytes) -> WireGet:
    """Return a request from its body, and from what stands in its subject behind the stream. Raises BadRequestError."""
    if subject and not body:
        return WireGet(last_by_subj=subject)
    if not body:
        raise from_reply(BAD_REQUEST, BAD_REQUEST_CODE, "Empty Request")
    try:
        request = _read(body)
    except GoJsonError:
        raise from_reply(BAD_REQUEST, BAD_REQUEST_CODE, "Malformed Request") from None
    return msgspec.structs.replace(request, last_by_subj=subject) if subject else request


# --- replies


def direct_frames(
    stream: str, request: WireGet, reply: DirectReply, *, after: int = 0, is_over: bool = True
) -> Iterator[DirectFrame]:
    """Return the replies to a request.

    A batch may come in pages: each continues `after` the last sequence of the one before, and only one `is_over`.
    """
    is_batch = bool(request.batch or request.multi_last)
    # As on nats-server, where the last of many subjects keep theirs.
    is_bare = request.no_hdr and not request.multi_last
    pending, last = reply.num_pending + len(reply.messages), after
    for message in reply.messages:
        pending -= 1
        counts = f"{headers.NUM_PENDING}: {pending}\r\n{headers.LAST_SEQUENCE}: {last}\r\n" if is_batch else ""
        yield DirectFrame(b"" if is_bare else _block(stream, message, counts), message.data)
        last = message.seq
    if is_batch and is_over:
        yield DirectFrame(_end(reply))


def direct_refusal(error: PeltonError, request: DirectGet | None = None) -> DirectFrame:
    """Return the reply to a request that gets nothing."""
    code, text = (error.code, error.description) if isinstance(error, ApiError) else (500, "Internal Error")
    if code == NOT_FOUND:
        text = "No Results" if request is not None and request.multi_last else "Message Not Found"
    return DirectFrame(f"NATS/1.0 {code} {text}\r\n\r\n".encode())


def _block(stream: str, message: StoredMessage, counts: str) -> bytes:
    own = message.hdrs[:-2] if message.hdrs else b"NATS/1.0\r\n"
    added = (
        f"{headers.STREAM}: {stream}\r\n{headers.SUBJECT}: {message.subject}\r\n{headers.SEQUENCE}: {message.seq}\r\n"
        f"{headers.TIME_STAMP}: {message.time}\r\n{counts}\r\n"
    )
    return own + added.encode()


def _end(reply: DirectReply) -> bytes:
    up_to = f"{headers.UP_TO_SEQUENCE}: {reply.up_to_seq}\r\n" if reply.up_to_seq else ""
    return (
        f"NATS/1.0 {END} EOB\r\n{headers.NUM_PENDING}: {reply.num_pending}\r\n"
        f"{headers.LAST_SEQUENCE}: {reply.last_seq}\r\n{up_to}\r\n"
    ).encode()


def is_batched(block: bytes | None) -> bool:
    """Whether more replies follow one with this header block."""
    return block is not None and _BATCHED in block


def stored_in(frame: DirectFrame) -> StoredMessage:
    """Return a message with the headers it was stored with, without those the server adds behind them."""
    stored, _, added = frame.block.rpartition(_ADDED)
    facts = headers.decode(b"NATS/1.0" + _ADDED + added)
    hdrs = stored + b"\r\n\r\n"
    return StoredMessage(
        facts[headers.SUBJECT],
        int(facts[headers.SEQUENCE]),
        parse_rfc3339(facts[headers.TIME_STAMP]),
        b"" if hdrs == _NO_HEADERS else hdrs,
        frame.data,
    )


def note_end(reply: DirectReply, block: bytes) -> None:
    """Set on a reply what the last frame of a batch tells."""
    told = headers.decode(block)
    reply.num_pending = int(told.get(headers.NUM_PENDING, 0))
    reply.last_seq = int(told.get(headers.LAST_SEQUENCE, 0))
    reply.up_to_seq = int(told.get(headers.UP_TO_SEQUENCE, 0))
