"""The page about the file format names every table and column, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from pelton.storage.schema import APPLICATION_ID, SCHEMA_VERSION
from tests.storage.stores import a_store, raw

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "file-format.md").read_text()
_ROW = re.compile(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)


async def test_the_page_lists_each_table_with_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with raw(path) as store:
        names = [name for (name,) in store.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
        found = {
            name.replace("m_1", "m_N"): [column for _, column, *_ in store.execute(f"PRAGMA table_info({name})")]
            for name in names
            if not name.startswith("sqlite_")
        }
    told = {table: re.findall(r"`(\w+)`", columns) for table, columns in _ROW.findall(PAGE)}
    assert told == found


def test_the_page_tells_the_version_and_the_mark() -> None:
    assert f"the version of the schema: {SCHEMA_VERSION}." in PAGE
    assert f"`0x{APPLICATION_ID:X}`" in PAGE
