"""Cron that runs once, however many programs there are: the leader runs it, and another program takes over if it ends.

The next tick is kept in a bucket and written by compare and set, together with the leader's fencing token. So a leader
that was stopped and wakes up too late changes nothing.

Prints::

    anna runs tick 1
    anna runs tick 2
    anna runs tick 3
    anna steps down
    ben runs tick 4
    ben runs tick 5
    ben runs tick 6
    ben steps down
    a tick of the old leader: refused
"""

import asyncio

import msgspec

import pelton

STORE = "cron.pelton"
INTERVAL_S = 0.1
EACH = 3


class Ticks(msgspec.Struct):
    last: int = 0
    token: int = 0


async def tick(bucket: pelton.Bucket[Ticks], token: int) -> int | None:
    """Run the next tick once; return None if a newer leader has done so."""
    entry = await bucket.get("ticks")
    assert entry.value is not None
    if token < entry.value.token:
        return None
    done = Ticks(entry.value.last + 1, token)
    await bucket.update("ticks", done, entry.revision)
    return done.last


async def program(name: str, tokens: list[int]) -> None:
    """One of many programs that could run the ticks."""
    async with pelton.open(STORE) as jet:
        bucket = await jet.bucket("cron", type=Ticks)
        async with jet.elect("cron", name=name, ttl=10) as term:
            tokens.append(term.token)
            for _ in range(EACH):
                print(f"{name} runs tick {await tick(bucket, term.token)}")
                await asyncio.sleep(INTERVAL_S)
            print(f"{name} steps down")


async def main() -> None:
    async with pelton.open(STORE) as jet:
        bucket = await jet.create_bucket("cron", type=Ticks)
        await bucket.create("ticks", Ticks())
        tokens: list[int] = []
        first = asyncio.create_task(program("anna", tokens))
        while not tokens:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(program("ben", tokens))
        await asyncio.gather(first, second)
        refused = await tick(bucket, tokens[0]) is None
        print(f"a tick of the old leader: {'refused' if refused else 'done twice'}")


if __name__ == "__main__":
    asyncio.run(main())
