"""A file too large for memory is put and got in chunks, and a put breaks off in the middle.

Prints::

    put: 24 MiB in 192 chunks
    progress: from 2 to 24 MiB
    got: the same 24 MiB
    after a broken put: still 24 MiB
    listed: backup.tar
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pelton

MIB = 1024 * 1024


async def download(pieces: int, breaks_off: bool = False) -> AsyncIterator[bytes]:
    """Stand in for data that arrives over a network."""
    for number in range(pieces):
        yield number.to_bytes(4, "big") * (MIB // 4)
    if breaks_off:
        raise ConnectionError("the other side hung up")


async def main() -> None:
    async with pelton.open("files.pelton") as jet:
        files = await jet.create_objects("files")
        told: list[int] = []
        put = await files.put("backup.tar", download(24), progress=lambda done, total: told.append(done // MIB))
        print(f"put: {put.size // MIB} MiB in {put.chunks} chunks")
        print(f"progress: from {told[0]} to {told[-1]} MiB")

        await files.get_file("backup.tar", "backup.tar")
        with Path("backup.tar").open("rb") as file:
            same = hashlib.file_digest(file, "sha256").digest()
        digest = hashlib.sha256()
        async for piece in download(24):
            digest.update(piece)
        print(f"got: {'the same' if digest.digest() == same else 'other'} {put.size // MIB} MiB")

        try:
            await files.put("backup.tar", download(3, breaks_off=True))
        except ConnectionError:
            print(f"after a broken put: still {(await files.info('backup.tar')).size // MIB} MiB")
        print("listed:", *[info.name async for info in files.list()])


asyncio.run(main())
