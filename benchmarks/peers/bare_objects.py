"""A yardstick: chunks as rows of a table, with the digest, by APSW alone."""

from __future__ import annotations

import hashlib

import apsw

from benchmarks.case import Run, Sample
from benchmarks.objects import CHUNK, CONTENT, rates

_AT_ONCE = 32


async def put_and_get(run: Run) -> Sample:
    """Put chunks, some at a commit; get them in order."""
    database = apsw.Connection(str(run.workdir / "bare.db"))
    database.pragma("page_size", 16384)
    database.pragma("journal_mode", "wal")
    database.pragma("synchronous", "full")
    database.pragma("secure_delete", 0)
    database.execute("CREATE TABLE chunk(seq INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    async def put() -> None:
        old = database.execute("SELECT max(seq) FROM chunk").fetchall()[0][0]
        digest = hashlib.sha256()
        for start in range(0, len(CONTENT), CHUNK * _AT_ONCE):
            block = CONTENT[start : start + CHUNK * _AT_ONCE]
            digest.update(block)
            rows = [(block[at : at + CHUNK],) for at in range(0, len(block), CHUNK)]
            with database:
                database.executemany("INSERT INTO chunk(data) VALUES (?)", rows)
        if old is not None:
            database.execute("DELETE FROM chunk WHERE seq <= ?", (old,))

    async def get() -> bytes:
        digest = hashlib.sha256()
        chunks = []
        for (chunk,) in database.execute("SELECT data FROM chunk ORDER BY seq"):
            digest.update(chunk)
            chunks.append(chunk)
        return b"".join(chunks)

    return await rates(run.seconds, put, get)
