"""What a staged file of a Spark task has, for tests of who writes it."""

from __future__ import annotations

from collections.abc import Iterator

from pelton.api import Outgoing
from pelton.api.keys import Key
from pelton.engine.bulk import staged_portions


def read_staged(path: str, key: Key | None = None) -> Iterator[list[Outgoing]]:
    """Iterate over the messages of a staged file by portions. Raises NotAStoreError if it does not exist."""
    for portion in staged_portions(path, key):
        yield portion.messages()
