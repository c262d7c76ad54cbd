"""Counters: subjects that are numbers (ADR-49)."""

from __future__ import annotations

from typing import Any, Final

from pelton.api import BadRequestError, ConfigError
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.table import case, fails, only, refused

_INCR: Final = "Nats-Incr"
_SOURCES: Final = "Nats-Counter-Sources"


async def _counting(jet: Jet, **config: Any) -> Stream:
    return await jet.create_stream("S", subjects=["s.>"], allow_msg_counter=True, **config)


async def _stored(stream: Stream, subject: str) -> tuple[bytes, bytes]:
    message = await stream.get_last_message(subject)
    return message.hdrs, message.data


@case
async def adding_returns_the_total(jet: Jet) -> None:
    stream = await _counting(jet)
    assert [await jet.add("s.a"), await jet.add("s.a", 41), await jet.add("s.a", -50)] == [1, 42, -8]
    assert await jet.add("s.b", 5) == 5
    assert (await stream.counter("s.a"), await stream.counter("s.b"), await stream.counter("s.c")) == (-8, 5, 0)


@case
async def every_addition_is_a_message(jet: Jet) -> None:
    stream = await _counting(jet)
    first = await jet.publish("s.a", headers={_INCR: "+2"})
    second = await jet.publish("s.a", headers={"A": "b", _INCR: "-5"})
    assert [(ack.seq, ack.val) for ack in (first, second)] == [(1, "2"), (2, "-3")]
    assert (await stream.get_message(1)).data == b'{"val":"2"}'
    assert await _stored(stream, "s.a") == (b"NATS/1.0\r\nA: b\r\nNats-Incr: -5\r\n\r\n", b'{"val":"-3"}')


@case
async def numbers_are_of_any_size(jet: Jet) -> None:
    stream = await _counting(jet)
    large = 10**40
    assert await jet.add("s.a", large) == large
    assert await jet.add("s.a", large) == 2 * large
    assert await jet.add("s.a", -3 * large) == -large
    huge = 10**6000
    assert await jet.add("s.b", huge) == huge
    assert await jet.add("s.b", 1) == huge + 1
    assert await stream.counter("s.b") == huge + 1


@case
async def what_is_a_number(jet: Jet) -> None:
    await _counting(jet)
    total = 0
    for text, value in {"1": 1, "+1": 1, "-3": -3, "0": 0, "+0": 0, "-0": 0, "007": 7, " 4": 4, "4 ": 4}.items():
        total += value
        assert (await jet.publish("s.a", headers={_INCR: text})).val == str(total)


@case
async def what_is_none(jet: Jet) -> None:
    stream = await _counting(jet)
    for text in ("1.5", "x", "-", "+", "1_000", "0x10", "0b1", "1e3", "\u0661", "+-1", "--1", "1 2", "inf", "NaN"):
        await refused(10171, jet.publish("s.a", headers={_INCR: text}))
    assert (await stream.info()).state.messages == 0


@case
async def a_counter_takes_nothing_else(jet: Jet) -> None:
    stream = await _counting(jet)
    for asked in (jet.publish("s.a"), jet.publish("s.a", b"x"), jet.publish("s.a", headers={_INCR: ""})):
        await refused(10169, asked)
    await refused(10170, jet.publish("s.a", b"x", headers={_INCR: "1"}))
    await refused(10169, jet.publish_batch([("s.a", b"")]))
    assert (await stream.info()).state.messages == 0


@case
async def other_streams_do_not_count(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    assert isinstance(await refused(10168, jet.add("s.a")), BadRequestError)
    await refused(10171, jet.publish("s.a", headers={_INCR: "x"}))
    await refused(10168, jet.publish("s.a", b"x", headers={_INCR: "1"}))
    assert (await jet.publish("s.a", headers={_INCR: ""})).seq == 1


@case
async def an_addition_expects_nothing(jet: Jet) -> None:
    await _counting(jet)
    for name in ("Stream", "Last-Msg-Id", "Last-Sequence", "Last-Subject-Sequence", "Last-Subject-Sequence-Subject"):
        header = f"Nats-Expected-{name}"
        for value in ("S", "0"):
            await refused(10171, jet.publish("s.a", headers={_INCR: "1", header: value}))
        assert (await jet.publish("s.b", headers={_INCR: "1", header: ""})).val
    await refused(10171, jet.publish("s.a", headers={_INCR: "1", "Nats-Rollup": "sub"}))
    await refused(10170, jet.publish("s.a", b"x", headers={_INCR: "1", "Nats-Expected-Stream": "T"}))


@case
async def a_duplicate_adds_nothing(jet: Jet) -> None:
    stream = await _counting(jet)
    assert await jet.add("s.a", 5, msg_id="x") == 5
    again = await jet.publish("s.a", headers={_INCR: "5"}, msg_id="x")
    assert (again.seq, again.duplicate, again.val) == (1, True, "")
    assert await jet.add("s.a", 2) == 7
    assert await jet.add("s.a", 5, msg_id="x") == 7
    assert (await stream.info()).state.messages == 2


@case
async def a_purge_resets(jet: Jet) -> None:
    stream = await _counting(jet)
    await jet.add("s.a", 5)
    await jet.add("s.b", 6)
    await stream.purge(filter="s.a")
    assert await stream.counter("s.a") == 0
    assert (await jet.add("s.a", 1), await jet.add("s.b", 1)) == (1, 7)
    await stream.purge()
    assert (await jet.add("s.a", 1), await jet.add("s.b", 1)) == (1, 1)


@case
async def deleting_the_last_addition_undoes_it(jet: Jet) -> None:
    stream = await _counting(jet)
    await jet.add("s.a", 1)
    await jet.add("s.a", 2)
    await stream.delete_message(2)
    assert await stream.counter("s.a") == 1
    assert await jet.add("s.a", 10) == 11


@case
async def limits_keep_the_total_with_the_last_message(jet: Jet) -> None:
    stream = await _counting(jet, max_msgs_per_subject=1)
    for _ in range(3):
        await jet.add("s.a", 2)
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, await stream.counter("s.a")) == (1, 3, 6)


@case
async def a_counter_ends_with_its_last_message(jet: Jet) -> None:
    await _counting(jet, max_msgs=1)
    acks = await jet.publish_batch([(subject, b"", {_INCR: "3"}) for subject in ("s.a", "s.a", "s.b", "s.a")])
    assert [ack.val for ack in acks] == ["3", "6", "3", "3"]


@case
async def additions_of_one_batch_see_each_other(jet: Jet) -> None:
    await _counting(jet)
    acks = await jet.publish_batch([(f"s.{n % 3}", b"", {_INCR: str(n)}) for n in range(12)])
    assert [ack.val for ack in acks] == [str(sum(range(n % 3, n + 1, 3))) for n in range(12)]


@case
async def sources_are_carried_along(jet: Jet) -> None:
    stream = await _counting(jet)
    await jet.publish("s.a", headers={_INCR: "5", _SOURCES: '{"B":{"y":"1","x":"2"},"A":{"x":"3"}}'})
    assert (await _stored(stream, "s.a"))[0].endswith(b'Sources: {"B":{"y":"1","x":"2"},"A":{"x":"3"}}\r\n\r\n')
    carried = b'Nats-Counter-Sources: {"A":{"x":"3"},"B":{"x":"2","y":"1"}}\r\n'
    await jet.add("s.a")
    assert (await _stored(stream, "s.a"))[0] == b"NATS/1.0\r\nNats-Incr: 1\r\n" + carried + b"\r\n"
    await jet.publish("s.a", headers={"A": "1", _SOURCES: '{"Q":{"y":"1"}}', _INCR: "2"})
    assert (await _stored(stream, "s.a"))[0] == b"NATS/1.0\r\nA: 1\r\n" + carried + b"Nats-Incr: 2\r\n\r\n"


@only("engine", "sources that nobody can read are refused; NATS stores them and refuses every later addition (10172)")
async def sources_that_cannot_be_read_are_refused(jet: Jet) -> None:
    await _counting(jet)
    for text in ("no json", '{"A":1}', "[]"):
        await refused(10171, jet.publish("s.a", headers={_INCR: "1", _SOURCES: text}))
    assert await jet.add("s.a") == 1


@only("server", "see above: embedded, nothing that is published breaks a counter, only damage does")
async def sources_that_cannot_be_read_break_a_counter(jet: Jet) -> None:
    await _counting(jet)
    assert (await jet.publish("s.a", headers={_INCR: "1", _SOURCES: "no json"})).val == "1"
    await refused(10172, jet.add("s.a"))


@case
async def the_stored_message_is_what_must_not_be_too_large(jet: Jet) -> None:
    await _counting(jet, max_msg_size=40)
    await jet.add("s.a")
    await refused(10054, jet.add("s.a", 100))
    await refused(10054, jet.publish("s.a", headers={_INCR: "1", "X": "y" * 40}))
    assert await jet.add("s.a") == 2


@case
async def which_streams_can_count(jet: Jet) -> None:
    for config, reason in (
        ({"discard": "new"}, "counter stream cannot use discard new"),
        ({"discard": "new", "retention": "workqueue"}, "counter stream cannot use discard new"),
        ({"allow_msg_ttl": True}, "counter stream cannot use message TTLs"),
        ({"allow_msg_schedules": True}, "counter stream cannot use message schedules"),
        ({"retention": "workqueue"}, "counter stream can only use limits retention"),
        ({"retention": "interest"}, "counter stream can only use limits retention"),
    ):
        error = await refused(10052, _counting(jet, **config))
        assert error.description == reason


@case
async def a_stream_counts_for_ever_or_never(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    await jet.create_stream("C", subjects=["c.>"], allow_msg_counter=True)
    for name, counts in (("S", True), ("C", False)):
        error = await refused(10052, jet.update_stream(name, allow_msg_counter=counts))
        assert error.description == "stream configuration update can not change message counter setting"


@case
async def what_is_no_counter_has_no_total(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish("s.a", b"text")
    await fails(ConfigError, stream.counter("s.a"))


@case
async def only_whole_numbers_are_added(jet: Jet) -> None:
    await _counting(jet)
    for wrong in (1.5, "1", None, True):
        await fails(ConfigError, jet.add("s.a", wrong))  # type: ignore[arg-type]  # on purpose
