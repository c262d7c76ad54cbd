"""A client in its own process: follows instructions on a bucket, and reports each step before and after it.

Lines come in: a round (its number, a seed, how many operations). Lines go out: an operation without a result when it
is called, the same with its result, and an empty line at the end of a round.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from time import monotonic_ns
from typing import Any

import msgspec

import pelton
from tests.kit.linear import Op

BUCKET = "linear"
_KINDS = ["put", "create", "update", "update", "delete", "delete", "get", "get", "get"]
_REFUSED = (pelton.WrongLastSequenceError, pelton.BucketKeyExistsError)
Bucket = pelton.Bucket[bytes]


class Round(msgspec.Struct, array_like=True):
    """A client's instructions: that many operations, on keys of this round."""

    number: int
    seed: int
    count: int


class Client:
    """One client: its random choices, and the revisions of each key it knows."""

    def __init__(self, bucket: Bucket, name: str, asked: Round, say: Callable[[Op], None]) -> None:
        self._say = say
        self._bucket = bucket
        self._name = name
        self._round = asked
        self._random = random.Random(f"{asked.seed} {name}")
        self._known: dict[str, int] = {}

    async def run(self) -> None:
        for number in range(self._round.count):
            key = f"{self._round.number}.{self._random.choice('ab')}"
            op = Op(
                client=self._name,
                key=key,
                kind=self._random.choice(_KINDS),
                called=0,
                value=f"{self._name}-{number}",
            )
            if op.kind == "update" or (op.kind == "delete" and self._random.random() < 0.5):
                op = msgspec.structs.replace(op, expected=self._known.get(key, 0))
            if op.kind in ("get", "delete"):
                op = msgspec.structs.replace(op, value="")
            await self._do(msgspec.structs.replace(op, called=monotonic_ns()))

    async def _do(self, op: Op) -> None:
        self._say(op)
        told: dict[str, Any]
        try:
            told = await _WAYS[op.kind](self._bucket, op)
        except _REFUSED as error:
            told = {"answer": "refused"}
            if isinstance(error, pelton.WrongLastSequenceError) and error.seq:
                told["revision"] = error.seq
        except pelton.BucketKeyNotFoundError:
            told = {"answer": "missing"}
        if told.get("revision"):
            self._known[op.key] = told["revision"]
        self._say(msgspec.structs.replace(op, returned=monotonic_ns(), **told))


async def _put(bucket: Bucket, op: Op) -> dict[str, Any]:
    return {"answer": "done", "revision": await bucket.put(op.key, op.value.encode())}


async def _create(bucket: Bucket, op: Op) -> dict[str, Any]:
    return {"answer": "done", "revision": await bucket.create(op.key, op.value.encode())}


async def _update(bucket: Bucket, op: Op) -> dict[str, Any]:
    return {"answer": "done", "revision": await bucket.update(op.key, op.value.encode(), op.expected)}


async def _delete(bucket: Bucket, op: Op) -> dict[str, Any]:
    await bucket.delete(op.key, revision=op.expected or None)
    return {"answer": "done"}


async def _get(bucket: Bucket, op: Op) -> dict[str, Any]:
    entry = await bucket.get(op.key)
    assert entry.value is not None
    return {"answer": "done", "value": entry.value.decode(), "revision": entry.revision}


_WAYS: dict[str, Callable[[Bucket, Op], Awaitable[dict[str, Any]]]] = {
    "put": _put,
    "create": _create,
    "update": _update,
    "delete": _delete,
    "get": _get,
}


def say(op: Op | None) -> None:
    """Write a line at once: a report made before a kill counts."""
    sys.stdout.buffer.write((msgspec.json.encode(op) if op is not None else b"") + b"\n")
    sys.stdout.buffer.flush()


async def main(address: str, name: str) -> None:
    async with pelton.open(address) as jet:
        bucket = await jet.bucket(BUCKET)
        say(None)
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            await Client(bucket, name, msgspec.json.decode(line, type=Round), say).run()
            say(None)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
