"""Pull requests and their answers as they travel (ADR-13): the JSON of a request, and the statuses that end one.

A server decodes what a client encodes; both are here.
"""

from typing import Any, Final, NamedTuple

import msgspec

from pelton.api.errors import from_reply
from pelton.api.go_json import GoJsonError, StructReader
from pelton.api.message import PullRequest


class PullStatus(NamedTuple):
    """How a pull ended, or why it was refused."""

    code: int
    text: str


NO_MESSAGES: Final = PullStatus(404, "No Messages")
EXPIRED: Final = PullStatus(408, "Request Timeout")
REQUESTS_PENDING: Final = PullStatus(408, "Requests Pending")
TOO_LARGE: Final = PullStatus(409, "Message Size Exceeds MaxBytes")
BATCH_COMPLETED: Final = PullStatus(409, "Batch Completed")
MAX_WAITING: Final = PullStatus(409, "Exceeded MaxWaiting")
CONSUMER_DELETED: Final = PullStatus(409, "Consumer Deleted")
LEADERSHIP_CHANGE: Final = PullStatus(409, "Leadership Change")
SHUTDOWN: Final = PullStatus(409, "Server Shutdown")
PIN_TAKEN: Final = PullStatus(423, "Nats-Wrong-Pin-Id")

HEARTBEAT: Final = PullStatus(100, "Idle Heartbeat")


class NextRequest(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The JSON of a pull; `expires` and `idle_heartbeat` in nanoseconds, 0 for none."""

    batch: int = 0
    expires: int = 0
    max_bytes: int = 0
    no_wait: bool = False
    idle_heartbeat: int = 0
    group: str = ""
    id: str = ""
    priority: int = 0
    min_pending: int = 0
    min_ack_pending: int = 0

    @property
    def request(self) -> PullRequest:
        """The pull as a backend takes it."""
        return PullRequest(
            batch=max(self.batch, 1),
            max_bytes=max(self.max_bytes, 0),
            expires_ns=self.expires if self.expires > 0 else None,
            no_wait=self.no_wait,
            group=self.group,
            pin_id=self.id,
            priority=self.priority,
            min_pending=self.min_pending,
            min_ack_pending=self.min_ack_pending,
        )


_read: Final = StructReader(NextRequest)
_HALF: Final = 1 << 63
_encode: Final = msgspec.json.Encoder().encode


def encode_next(request: NextRequest) -> bytes:
    """Return the body of a pull."""
    return _encode(request)


def decode_next(body: bytes) -> NextRequest:
    """Return a pull from its body: JSON, a number of messages, or anything else for one. Raises BadRequestError."""
    text = body.strip()
    if not text.startswith(b"{"):
        return NextRequest(batch=int(text) if text.isdigit() and len(text) < 10 else 1)
    try:
        found = _read(text)
    except GoJsonError as error:
        raise from_reply(400, 0, f"Bad Request - {error}") from None
    # Twice the largest ones is less than nothing, to a server.
    if found.idle_heartbeat > 0 and (2 * found.idle_heartbeat + _HALF) % (2 * _HALF) - _HALF > found.expires:
        raise from_reply(400, 0, "Bad Request - heartbeat value too large")
    return found


def pulled(request: PullRequest, *, expires_ns: int, no_wait: bool, batch: int, heartbeat_ns: int) -> NextRequest:
    """Return a pull as it is sent, with its own `batch`, time and heartbeat."""
    fields: dict[str, Any] = {
        "max_bytes": request.max_bytes,
        "group": request.group,
        "id": request.pin_id,
        "priority": request.priority,
        "min_pending": request.min_pending,
        "min_ack_pending": request.min_ack_pending,
    }
    return NextRequest(batch=batch, expires=expires_ns, no_wait=no_wait, idle_heartbeat=heartbeat_ns, **fields)
