"""A conditional publish that is repeated because its reply was lost, and refused because the first was stored.

nats-server checks expected sequences before it looks for a known message id, so the refusal of the second attempt may
be due to the first. If the first was stored, it comes right after the expected sequence: the id of the message there
shows whether it is ours. (A message that a limit has removed since cannot be checked; the refusal stands then.)
"""

from __future__ import annotations

from pelton.api import ApiError, MsgGet, Outgoing, PubAck, headers
from pelton.api.codec import api_subject, decode_reply, encode_body
from pelton.cluster.connection import Connection


async def stored_before(connection: Connection, stream: str, message: Outgoing) -> PubAck | None:
    """Return the acknowledgement of a message that an earlier attempt stored; None if none did.

    Raises Interrupted, StoreError.
    """
    told = headers.decode(message.headers or b"")
    request = _place(stream, message.subject, told)
    if request is None:
        return None
    where = api_subject(request, connection.settings.api_prefix)
    try:
        answer = await connection.ask(where, encode_body(request), again=True)
        found = decode_reply(request, answer.data).message
    except ApiError:
        return None
    is_ours = headers.decode(found.hdrs).get(headers.MSG_ID) == told[headers.MSG_ID]
    return PubAck(stream, found.seq, duplicate=True) if is_ours else None


def _place(stream: str, subject: str, told: headers.Headers) -> MsgGet | None:
    """Return the request for the message right after the expected sequence."""
    last = told.get(headers.EXPECTED_LAST_SEQUENCE, "").strip()
    if last.isdigit():
        return MsgGet(stream=stream, seq=int(last) + 1)
    last = told.get(headers.EXPECTED_LAST_SUBJECT_SEQUENCE, "").strip()
    return MsgGet(stream=stream, seq=int(last) + 1, next_by_subj=subject) if last.isdigit() else None
