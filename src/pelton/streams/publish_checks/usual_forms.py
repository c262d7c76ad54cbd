"""The forms that most header blocks with conditions or schedules have, recognized at once. Pure.

A block of such a form holds nothing else, so what it asks for is known without a look at each header.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pelton.api import headers

_TOKEN: Final = r"([0-9A-Za-z_-]+)"
_PARENT: Final = r"([!-~]+)\."
_FORM: Final = re.compile(
    r"NATS/1\.0\r\n"
    rf"(?:{headers.SCHEDULE}: (@at [0-9TZ:.+-]+)\r\n{headers.SCHEDULE_TARGET}: {_PARENT}{_TOKEN}\r\n"
    rf"(?:{headers.DELAY}: [0-9a-z.]+\r\n)?)?"
    rf"(?:{headers.EXPECTED_LAST_SUBJECT_SEQUENCE}: ([0-9]{{1,18}})\r\n"
    rf"{headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT}: {_PARENT}{_TOKEN}\r\n)?"
    rf"(?:{headers.MSG_ID}: ([!-~]+)\r\n)?\r\n"
)
# A longer block may hold a subject that is too long, which only the checks of a single message tell.
_LONGEST: Final = 1_024


class UsualForm(NamedTuple):
    """What a block asks for; an empty text: it does not. Subjects are given as all tokens but the last, and the last.

    ``schedule`` is a time, ``expected`` the last sequence (digits) of what the filter ``where`` matches.
    """

    schedule: str
    target_parent: str
    target_token: str
    expected: str
    where_parent: str
    where_token: str
    msg_id: str


def usual_form(block: bytes) -> UsualForm | None:
    """Return what a header block of a usual form asks for; None for any other."""
    if len(block) > _LONGEST or not block.isascii():
        return None
    found = _FORM.fullmatch(block.decode("ascii"))
    return None if found is None else UsualForm._make(found.groups(""))
