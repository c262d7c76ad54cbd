"""Every error code of the engine is provoked by a conformance case, so that a real server confirms each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pelton
from pelton.api.error_table import ERRORS

_SOURCE = Path(pelton.__file__).parent
# In separate tests, for a server and a store: tests/storage/test_restoring.py, tests/cluster/test_snapshots.py,
# tests/server/test_archives.py.
_UNSTATED = {"JSStreamNameExistRestoreFailedErr", "JSStreamRestoreErrF"}
_ROOMS = ("streams", "consumers", "sourcing", "engine")


def _constants(folder: Path) -> Iterator[object]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant):
                yield node.value


def test_every_code_has_a_case() -> None:
    raised = {value for room in _ROOMS for value in _constants(_SOURCE / room) if value in ERRORS}
    stated = {value for value in _constants(Path(__file__).parent / "cases") if type(value) is int}
    missing = {str(name) for name in raised if ERRORS[str(name)][1] not in stated}
    assert missing == _UNSTATED
