"""Settings in a bucket that running programs watch: when you change them, every program has them at once.

Prints::

    started with Settings(colour='red', workers=2)
    now Settings(colour='blue', workers=2)
    not taken: bucket 'settings', key 'shop' at revision 3
    now Settings(colour='green', workers=8)
    back to the defaults
"""

import asyncio
import tempfile
from pathlib import Path

import msgspec

import pelton


class Settings(msgspec.Struct):
    colour: str
    workers: int = 2


async def shop(store: Path, started: asyncio.Event) -> None:
    """Every program does this: read the current settings, then watch for changes."""
    async with pelton.open(store) as jet:
        bucket = await jet.bucket("settings", type=Settings)
        revision = 0
        while True:
            watching = bucket.watch("shop", resume_from_revision=revision)
            try:
                async for entry in watching:
                    if entry is None:
                        started.set()
                    elif entry.operation != "put":
                        print("back to the defaults")
                        return
                    else:
                        print("now" if started.is_set() else "started with", entry.value)
            except pelton.BucketDecodeError as error:
                # Another program wrote invalid settings: keep the current ones, and continue after that revision.
                print("not taken:", str(error).partition(": ")[0])
                revision = error.revision + 1
            finally:
                await watching.aclose()


async def main(store: Path) -> None:
    async with pelton.open(store) as jet:
        settings = await jet.create_bucket("settings", type=Settings, history=5)
        first = await settings.create("shop", Settings("red"))
        started = asyncio.Event()
        program = asyncio.create_task(shop(store, started))
        await started.wait()
        # Update only the revision we have seen, so that two concurrent changes do not undo each other.
        await settings.update("shop", Settings("blue"), first)
        await (await jet.bucket("settings")).put("shop", b'{"color": "typo"}')
        await settings.put("shop", Settings("green", workers=8))
        await settings.delete("shop")
        await program


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "settings.pelton"))
