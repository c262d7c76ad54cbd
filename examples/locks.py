"""Three processes share a lock; a register refuses writes from a holder that was replaced.

Prints::

    3 processes wrote 15 times, each with a token of its own
    never out of order: True
"""

import asyncio
import multiprocessing
from pathlib import Path

import pelton

STORE = "garage.pelton"
REGISTER = Path("register")


async def work() -> None:
    async with pelton.open(STORE) as jet:
        for _ in range(5):
            async with jet.lock("car1", ttl=10) as held:
                # Read, compute, write: no other process does so at the same time.
                tokens = REGISTER.read_text().split()
                await asyncio.sleep(0.01)
                if not tokens or held.token > int(tokens[-1]):
                    REGISTER.write_text(" ".join([*tokens, str(held.token)]))


def worker() -> None:
    asyncio.run(work())


def main() -> None:
    REGISTER.write_text("")
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=worker) for _ in range(3)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    tokens = [int(token) for token in REGISTER.read_text().split()]
    print(f"{len(workers)} processes wrote {len(set(tokens))} times, each with a token of its own")
    print("never out of order:", tokens == sorted(tokens))


if __name__ == "__main__":
    main()
