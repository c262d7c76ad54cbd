"""The cached last message of a subject follows appends: the demo found a read that did not."""

import pelton


async def test_the_last_message_is_the_one_just_published_also_after_a_look() -> None:
    async with pelton.open("memory:") as jet:
        planes = await jet.create_stream("planes", subjects=["planes.>"])
        for number in range(1, 4):
            await jet.publish("planes.N1", b"%d" % number)
            assert (await planes.get_last_message("planes.N1")).data == b"%d" % number
        await jet.publish_batch([("planes.N1", b"4"), ("planes.N2", b"5")])
        assert (await planes.get_last_message("planes.N1")).data == b"4"
