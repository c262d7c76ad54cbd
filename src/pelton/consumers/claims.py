"""Claims: how a consumer with a limit per subject tracks the messages it has passed; see ``log.py``."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Claim(NamedTuple):
    """A row of ``claims``."""

    subject: str
    seq: int
    held: int


class SubjectClaims(msgspec.Struct, gc=False):
    """How many claims of a subject are held, and whether others wait behind them."""

    held: int
    has_parked: bool
