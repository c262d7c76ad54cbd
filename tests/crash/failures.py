"""What tests of failed syncs do to a store: checkpoint its WAL, and kill the process that has it open."""

from __future__ import annotations

import shutil
from pathlib import Path

from pelton.connect import Jet
from pelton.engine import Engine
from pelton.storage import Database
from tests.kit.power import RecordingDisk


def database(jet: Jet) -> Database:
    assert isinstance(jet.backend, Engine)
    return jet.backend.session.db


def fold(jet: Jet, mode: str) -> None:
    checkpointer = database(jet)._checkpointer
    assert checkpointer is not None
    checkpointer.fold(mode)


def killed(disk: RecordingDisk, path: Path, folder: Path) -> Path:
    """Copy the files to another folder, as a process killed now would leave them; continue recording there."""
    folder.mkdir()
    for ending in ("", "-wal", "-sync"):
        shutil.copy(f"{path}{ending}", folder)
    disk.moved(folder)
    return folder / path.name
