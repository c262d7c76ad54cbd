"""Looks through a stream: the same messages and sums are found in a file, in memory, by a reader and on a cluster."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import pelton
from pelton.api.requests import FindMessages, FindMessagesReply, SubjectTotals


@dataclass
class Looker:
    """Asks a backend about the stream S."""

    jet: pelton.Jet

    async def find(self, *filters: str, contains: tuple[str, ...] = (), **options: float) -> FindMessagesReply:
        request = {"within": 600.0, "limit": 100, **options}
        return await self.jet.backend.call(FindMessages(stream="S", filters=filters, contains=contains, **request))  # type: ignore[arg-type]

    async def seqs(self, *filters: str, contains: tuple[str, ...] = (), **options: float) -> list[int]:
        return [one.seq for one in (await self.find(*filters, contains=contains, **options)).messages]


async def fill(jet: pelton.Jet) -> pelton.Stream:
    stream = await jet.create_stream("S", subjects=["s.>"])
    for number in range(1, 31):
        await jet.publish(f"s.{number % 3}.x{number % 5}", f"payload {number}, Zürich".encode(), headers={"A": "b"})
    for seq in (4, 5, 30):
        await stream.delete_message(seq)
    return stream


LEFT = [seq for seq in range(1, 30) if seq not in (4, 5)]


async def check(looker: Looker) -> None:
    whole = await looker.find()
    assert [one.seq for one in whole.messages] == LEFT
    assert (whole.total, whole.next_begin) == (len(LEFT), 0)
    first = whole.messages[0]
    assert (first.subject, first.data, first.headers["A"]) == ("s.1.x1", b"payload 1, Z\xc3\xbcrich", "b")
    assert await looker.seqs("s.1.>") == [seq for seq in LEFT if seq % 3 == 1]
    mixed = await looker.find("s.1.x1", "s.2.>", "s.7.>")
    expected = [seq for seq in LEFT if seq % 15 == 1 or seq % 3 == 2]
    assert ([one.seq for one in mixed.messages], mixed.total) == (expected, len(expected))
    assert await looker.seqs(contains=("d 2,", "d 17,", "nothing")) == [2, 17]
    assert await looker.seqs("s.2.>", contains=("Zürich",), begin=20) == [20, 23, 26, 29]
    assert (await looker.find(contains=("nothing",))).looked_at == len(LEFT)
    for none in (await looker.find("t.>"), await looker.find(begin=40)):
        assert (none.messages, none.next_begin) == ((), 0)


async def check_portions(looker: Looker) -> None:
    for filters, contains in ((("s.1.>", "s.2.>"), ()), ((), ("Zürich",))):
        expected, found, begin = await looker.seqs(*filters, contains=contains), list[int](), 1
        while begin:
            part = await looker.find(*filters, contains=contains, begin=begin, limit=4, within=0)
            assert len(part.messages) <= 4
            assert part.next_begin == 0 or part.next_begin > begin
            found, begin = found + [one.seq for one in part.messages], part.next_begin
        assert found == expected


async def check_totals(jet: pelton.Jet) -> None:
    for subject in ("t.a.b.%.1", "t.a.b.%.2", "t.a.b", "t.a.c", "u.a.b", "u.z.%.3", "v.a.b"):
        await jet.publish(subject)
    ask = SubjectTotals(stream="T", filters=("t.>", "u.>"), until="%")
    assert (await jet.backend.call(ask)).totals == {"a.b": 4, "a.c": 1, "z": 1}
    ask = SubjectTotals(stream="T", filters=("t.>", "u.>"), until="%", limit=2)
    assert list(((await jet.backend.call(ask)).totals or {}).items()) == [("a.b", 4), ("a.c", 1)]


async def test_a_look_finds_the_same_everywhere(jet: pelton.Jet, look: pelton.Jet) -> None:
    await fill(jet)
    for one in (jet, look):
        await check(Looker(one))
        await check_portions(Looker(one))
    await jet.create_stream("T", subjects=["t.>", "u.>", "v.>"])
    await check_totals(jet)
    for request in (FindMessages(stream="none"), SubjectTotals(stream="none", filters=("a.>",), until="%")):
        with pytest.raises(pelton.StreamNotFoundError):
            await look.backend.call(request)


async def test_a_look_at_a_store_in_memory() -> None:
    async with pelton.open("memory:") as jet:
        await fill(jet)
        await check(Looker(jet))
        await check_portions(Looker(jet))
        await jet.create_stream("T", subjects=["t.>", "u.>", "v.>"])
        await check_totals(jet)


async def test_a_compressed_payload_is_looked_into(jet: pelton.Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"], compression="s2")
    for number in range(5):
        await jet.publish("s.a", b"again and " * 100 + str(number).encode())
    assert await Looker(jet).seqs(contains=("and 3",)) == [4]


async def test_a_look_inside_a_transaction_sees_what_is_committed(tmp_path: object) -> None:
    async with pelton.open(f"{tmp_path}/a.pelton") as jet:
        await fill(jet)
        async with jet.transaction() as tx:
            await tx.publish("s.new", b"new")
            assert await Looker(jet).seqs("s.new") == []
        assert await Looker(jet).seqs("s.new") == [31]
    async with pelton.open("memory:") as jet:
        await fill(jet)
        async with jet.transaction() as tx:
            await tx.publish("s.new", b"new")
            with pytest.raises(pelton.StoreBusyError):
                await Looker(jet).seqs("s.new")
