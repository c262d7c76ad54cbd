"""Direct get (ADR-31): reads messages by sequence, subject or time, one or many.

Light structs, as on every hot path. A request gives the start, or the subjects whose last
messages are wanted; a reply holds the messages, and what the server reports at the end of a batch.
"""

import msgspec

from pelton.api import headers as header_blocks
from pelton.api.headers import Headers
from pelton.api.times import rfc3339

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
