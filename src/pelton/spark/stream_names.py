"""The streams that the option ``stream`` selects, by name or pattern. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

# The commit log of writes. A query that reads all streams and writes to one of them would never finish if it also read
# its own commits, so patterns do not select this stream; only its name does.
COMMIT_STREAM: Final = "SPARK_COMMITS"


def is_selected(name: str, asked: Iterable[str]) -> bool:
    """Whether names and patterns (``*``, ``?``) select a stream."""
    return any(name == one or (name != COMMIT_STREAM and fnmatchcase(name, one)) for one in asked)
