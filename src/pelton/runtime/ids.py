"""Unique ids without coordination, in the shape NATS clients use (NUID).

An id is 22 characters of base 62: a prefix of 12 drawn at random once, then a counter of 10 that starts at a
random value and moves by a random step. Uniqueness rests on the prefix (71 bits); the counter makes the next
id cheap.

A forked child inherits the parent's prefix and counter and would hand out the same ids, so the process id is
compared on every call and a child draws again.
"""

import itertools
import os
import random
from collections.abc import Iterator

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_BASE = len(_PAIRS)
_PREFIX_LENGTH = 12
_COUNTER_PAIRS = 5
_COUNTER_LIMIT = _BASE**_COUNTER_PAIRS
_STEP_FROM, _STEP_BELOW = 33, 333


class Ids:
    """A generator of unique ids; safe to share between threads and across `fork`."""

    def __init__(self, entropy: random.Random) -> None:
        """Draw prefix, start and step from `entropy`: the system's, or a seeded one in tests."""
        self._entropy = entropy
        self._draw()

    def new(self) -> str:
        """Return an id of 22 characters from `0-9A-Za-z` that this generator has not returned before."""
        if self._pid != os.getpid():
            self._draw()
        prefix, counter = self._sequence
        return prefix + _encode(next(counter) % _COUNTER_LIMIT)

    def _draw(self) -> None:
        prefix = "".join(self._entropy.choices(_DIGITS, k=_PREFIX_LENGTH))
        start = self._entropy.randrange(_COUNTER_LIMIT)
        step = self._entropy.randrange(_STEP_FROM, _STEP_BELOW)
        # One attribute, so that another thread never sees the new prefix with the old counter.
        # `next` on a count is a single step of the interpreter: threads never share a value.
        self._sequence: tuple[str, Iterator[int]] = (prefix, itertools.count(start, step))
        self._pid = os.getpid()


def _encode(value: int) -> str:
    parts = []
    for _ in range(_COUNTER_PAIRS):
        value, pair = divmod(value, _BASE)
        parts.append(_PAIRS[pair])
    parts.reverse()
    return "".join(parts)
