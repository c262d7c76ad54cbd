"""The handle of reads with SQL on one snapshot of an embedded store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from pelton.api import Backend, ConfigError, Reading, TransactionError
from pelton.api.arguments import check_text
from pelton.api.build import seconds_to_ns
from pelton.api.times import Seconds

_LONGEST_S: Final = 3600.0


class SqlReads:
    """SQL that reads one snapshot of the store. Made by ``jet.read()``, used in ``async with``."""

    def __init__(self, backend: Backend, timeout: Seconds) -> None:
        self._timeout = seconds_to_ns("timeout", timeout, "read") / 1e9
        if not 0 < self._timeout <= _LONGEST_S:
            raise ConfigError(f"read: timeout is {self._timeout:g} s; it must be more than 0 and at most 3600 s")
        self._backend = backend.embedded("read")
        self._reading: Reading | None = None

    async def __aenter__(self) -> Self:
        if self._reading is not None:
            raise TransactionError("it was already used: call jet.read() again for each block")
        reading = self._reading = self._backend.reading(self._timeout)
        await reading.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._reading is not None
        await self._reading.leave()

    async def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL that reads, and return the rows; ``bindings`` fill ``?`` by position or ``:name`` by name.

        Raises SqlError, TransactionError outside of its block, SqlForbiddenError for anything that writes,
        SnapshotTimeoutError; StoreBusyError if the store was not in use when the block began, and a process has opened
        it since: begin again.
        """
        check_text("read", "the statement", statement)
        if self._reading is None:
            raise TransactionError("it has not begun: use 'async with jet.read() as view'")
        return await self._reading.sql(statement, bindings)
