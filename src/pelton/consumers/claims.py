"""What a consumer with a limit per subject knows of the messages it has met: see ``log.py``."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Claim(NamedTuple):
    """A row of ``claims``."""

    subject: str
    seq: int
    held: int


class SubjectClaims(msgspec.Struct, gc=False):
    """How many claims of a subject are held, and whether some wait behind them."""

    held: int
    has_parked: bool
