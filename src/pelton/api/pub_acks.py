"""The answer to a publish as it travels: a stream and a sequence, or an error."""

from typing import Final

import msgspec

from pelton.api.errors import ApiError, PeltonError, from_reply
from pelton.api.info import ErrorBody, PubAck


class PubReply(msgspec.Struct):
    """The JSON of an answer. A message of a batch that is not committed yet is answered without any."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    domain: str = ""
    val: str = ""
    batch: str = ""
    count: int = 0
    error: ErrorBody | None = None


_decode: Final = msgspec.json.Decoder(PubReply).decode
_encode: Final = msgspec.json.Encoder().encode
_UNEXPECTED: Final = ErrorBody(code=500, err_code=10077, description="")


def decode_pub_ack(data: bytes) -> PubAck | ApiError:
    """Return the acknowledgement, or the error, that an answer holds."""
    if not data:
        # A message of a batch that is not committed yet.
        return PubAck("", 0)
    found = _decode(data)
    if found.error is not None:
        return from_reply(found.error.code, found.error.err_code, found.error.description, stream=found.stream)
    return PubAck(found.stream, found.seq, found.duplicate, found.domain, found.val, found.batch, found.count)


def encode_pub_ack(ack: PubAck, domain: str = "") -> bytes:
    """Return the answer to a publish that was stored, or kept for its batch, by a server in a JetStream domain."""
    if domain:
        ack = msgspec.structs.replace(ack, domain=domain)
    return _encode(ack) if ack.stream else b""


def encode_pub_error(error: PeltonError, stream: str) -> bytes:
    """Return the answer to a publish that was refused, or failed."""
    if isinstance(error, ApiError):
        body = ErrorBody(code=error.code, err_code=error.err_code, description=error.description)
    else:
        body = msgspec.structs.replace(_UNEXPECTED, description=str(error))
    return _encode({"error": body, "stream": stream, "seq": 0})
