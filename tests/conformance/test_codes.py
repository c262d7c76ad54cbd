"""Every error code of the engine is provoked by a conformance case, so that a real server has its say about each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pelton
from pelton.api.error_table import ERRORS

_SOURCE = Path(pelton.__file__).parent
_BY_THE_DOOR = "a name that is no name is refused before anything is sent"
_UNSTATED = {
    "JSStreamNameContainsPathSeparatorsErr": _BY_THE_DOOR,
    "JSConsumerNameContainsPathSeparatorsErr": _BY_THE_DOOR,
    "JSConsumerBadDurableNameErr": _BY_THE_DOOR,
    "JSStreamNameExistRestoreFailedErr": "backups are files: a server and a store are asked in tests of their own",
    "JSMessageCounterBrokenErr": "only what was stored before the stream counted, or a damaged store, can be broken",
}
_ROOMS = ("streams", "consumers", "sourcing", "engine")


def _constants(folder: Path) -> Iterator[object]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant):
                yield node.value


def test_every_code_has_a_case() -> None:
    raised = {value for room in _ROOMS for value in _constants(_SOURCE / room) if value in ERRORS}
    stated = {value for value in _constants(_SOURCE / "testing" / "conformance") if type(value) is int}
    missing = {str(name) for name in raised if ERRORS[str(name)][1] not in stated}
    assert missing == set(_UNSTATED)
