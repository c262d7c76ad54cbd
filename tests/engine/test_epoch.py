"""Fencing tokens only grow, whoever opens the store, and whatever is made anew."""

from pathlib import Path

import pytest

import pelton
from pelton.engine import epoch


async def token(jet: pelton.Jet) -> int:
    await jet.publish("s", b"")
    consumer = await (await jet.stream("s")).consumer("c")
    [message] = await consumer.fetch(1)
    await message.ack()
    return message.metadata.token


@pytest.mark.parametrize("is_known", [True, False])
async def test_tokens_grow_through_all_openings(
    tmp_path: Path, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_known:
        # As where the system does not tell one run of the machine from another.
        monkeypatch.setattr(epoch, "_BOOT_ID", str(tmp_path / "none"))
    path, seen = tmp_path / "a.pelton", list[int]()
    async with pelton.open(path, sync="off") as first:
        stream = await first.create_stream("s")
        await stream.create_consumer(durable_name="c")
        seen.append(await token(first))
        async with pelton.open(path, sync="off") as second:
            seen += [await token(jet) for jet in (second, first, second)]
            await (await second.stream("s")).delete_consumer("c")
            await stream.create_consumer(durable_name="c")
            seen += [await token(jet) for jet in (first, second, first)]
            await second.delete_stream("s")
            await (await first.create_stream("s")).create_consumer(durable_name="c")
            seen += [await token(jet) for jet in (second, first)]
    assert seen == sorted(set(seen))
