"""The cached last message of a subject follows appends: the demo found a read that did not."""

import pytest

import pelton


async def test_the_last_message_is_the_one_just_published_also_after_a_look() -> None:
    async with pelton.open("memory:") as jet:
        planes = await jet.create_stream("planes", subjects=["planes.>"])
        for number in range(1, 4):
            await jet.publish("planes.N1", b"%d" % number)
            assert (await planes.get_last_message("planes.N1")).data == b"%d" % number
        await jet.publish_batch([("planes.N1", b"4"), ("planes.N2", b"5")])
        assert (await planes.get_last_message("planes.N1")).data == b"4"


async def test_the_last_message_below_a_prefix_is_found_as_soon_as_there_is_one() -> None:
    async with pelton.open("memory:") as jet:
        planes = await jet.create_stream("planes", subjects=["planes.>"])
        await jet.publish_batch([(f"planes.far.{number}", b"far") for number in range(64)])
        with pytest.raises(pelton.MessageNotFoundError):
            await planes.get_last_message("planes.near.>")
        ack = await jet.publish("planes.near.N1", b"1")
        await jet.publish("planes.far.0", b"far")
        assert (await planes.get_last_message("planes.near.>")).data == b"1"
        await planes.delete_message(ack.seq)
        with pytest.raises(pelton.MessageNotFoundError):
            await planes.get_last_message("planes.near.>")
