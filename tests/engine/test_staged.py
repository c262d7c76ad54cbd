"""Files of staged messages."""

from array import array
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import pelton
from pelton.api import NoStreamForSubjectError, NotAStoreError, Outgoing, StoreError, StoreKeyError
from pelton.engine.bulk import StagedWriter, load
from pelton.jet import Savepoint
from pelton.storage import Columns
from pelton.streams import Packed
from tests.kit.staged import read_staged

MESSAGES = [
    Outgoing(f"orders.{n}", b"payload %d" % n, b"NATS/1.0\r\na: b\r\n\r\n" if n % 3 == 0 else None) for n in range(10)
]


def packed(subjects: list[str], payloads: list[bytes]) -> Packed:
    """Return what Spark's writer makes from Arrow, made from lists."""
    names = list(dict.fromkeys(subjects))
    texts = [name.encode() for name in names]
    begins = dict(zip(names, accumulate(map(len, texts), initial=0), strict=False))
    spots = [begins[subject] << 8 | len(subject.encode()) for subject in subjects]
    lengths = {len(data) for data in payloads}
    starts = accumulate(map(len, payloads), initial=1)
    pieces = b"".join(b"1%08d%08d" % (at, len(data)) for at, data in zip(starts, payloads, strict=False))
    columns = Columns(
        len(subjects),
        memoryview(b"".join(texts)),
        memoryview(array("I", spots).tobytes()),
        memoryview(b"".join(payloads)),
        lengths.pop() if len(lengths) == 1 else -1,
        memoryview(pieces),
        memoryview(
            array(
                "I", [crc32(data, crc32(subject.encode())) for subject, data in zip(subjects, payloads, strict=True)]
            ).tobytes()
        ),
    )
    size = sum(len(subject.encode()) + len(data) for subject, data in zip(subjects, payloads, strict=True))
    places = {name: [row for row, subject in enumerate(subjects) if subject == name] for name in names}
    firsts, lasts = [found[0] for found in places.values()], [found[-1] for found in places.values()]
    return Packed(columns, size, names, firsts, lasts, [len(found) for found in places.values()])


def stage(path: Path, key: str | None = None) -> None:
    with StagedWriter(str(path), key) as writer:
        add(writer, MESSAGES[:1])
        writer.add([message.subject for message in MESSAGES[1:3]], [message.data for message in MESSAGES[1:3]])
        add(writer, MESSAGES[3:7])
        writer.add_packed(packed([message.subject for message in MESSAGES[7:9]], [m.data for m in MESSAGES[7:9]]))
        add(writer, MESSAGES[9:])


def add(writer: StagedWriter, messages: Sequence[Outgoing]) -> None:
    writer.add([m.subject for m in messages], [m.data for m in messages], [m.headers for m in messages])


@pytest.mark.parametrize("key", [None, "secret"])
def test_what_is_staged_is_read_in_order(tmp_path: Path, key: str | None) -> None:
    stage(tmp_path / "file", key)
    assert [message for portion in read_staged(str(tmp_path / "file"), key) for message in portion] == MESSAGES
    assert (b"payload" in (tmp_path / "file").read_bytes()) == (key is None)


def test_large_portions_are_cut(tmp_path: Path) -> None:
    with StagedWriter(str(tmp_path / "file")) as writer:
        for _ in range(3):
            writer.add(["a"] * 10, [bytes(1_000_000)] * 10)
        writer.add(["a"] * 30, [bytes(1_000_000)] * 30)
    assert [len(portion) for portion in read_staged(str(tmp_path / "file"))] == [10, 10, 10, 15, 15]


def test_a_file_that_is_gone_or_has_another_key_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="staged file is gone"):
        next(iter(read_staged(str(tmp_path / "file"))))
    stage(tmp_path / "file", "secret")
    with pytest.raises(StoreKeyError):
        next(iter(read_staged(str(tmp_path / "file"), "other")))


def test_whatever_is_flipped_or_missing_nothing_wrong_is_read(tmp_path: Path) -> None:
    stage(tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    written = [place for place, byte in enumerate(whole) if byte]
    refused = 0
    for place in written:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        refused += is_refused(tmp_path / "file", bytes(flipped))
    # A few bits of SQLite's own header do not affect the stored data.
    assert refused > len(written) * 0.9
    assert all(is_refused(tmp_path / "file", whole[:length]) for length in (100, 65_536, len(whole) - 65_536))


def is_refused(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    try:
        read = [message for portion in read_staged(str(path)) for message in portion]
    except StoreError:
        return True
    assert read == MESSAGES
    return False


def test_a_file_whose_writer_failed_is_none(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), StagedWriter(str(tmp_path / "file")) as writer:
        writer.add(["a"] * 40_000, [b""] * 40_000)
        raise ZeroDivisionError
    with pytest.raises(StoreError, match="damaged"):
        list(read_staged(str(tmp_path / "file")))


PLAIN = [f"orders.{n % 7}é" for n in range(100)]


async def loaded(home: Path, payloads: list[bytes], **config: Any) -> tuple[list[Any], Any]:
    """Load two staged files between two publishes, and return what the stream holds, and its state."""
    with StagedWriter(str(home / "plain")) as writer:
        writer.add_packed(packed(PLAIN[:60], payloads[:60]))
        writer.add_packed(packed(PLAIN[60:], payloads[60:]))
    stage(home / "file")
    async with pelton.open(home / "s.pelton") as jet:
        stream = await jet.create_stream("orders", subjects=["orders.>"], allow_direct=True, **config)
        await jet.publish("orders.0é", b"before")
        transaction = jet.backend.transaction(60.0)
        async with Savepoint(transaction):
            for name in ("plain", "file", "plain"):
                await load(transaction, str(home / name))
        await jet.publish("orders.0é", b"after")
        found = await stream.get_messages(256) + await stream.get_messages(256, seq=201)
        state = (await stream.info(subjects_filter=">")).state
    assert pelton.verify(home / "s.pelton") == []
    return [(m.seq, m.subject, m.data, m.hdrs or None) for m in {m.seq: m for m in found}.values()], state


@pytest.mark.parametrize("config", [{}, {"compression": "s2"}, {"max_msgs": 150}, {"max_msgs_per_subject": 3}])
@pytest.mark.parametrize("payload", ["payload %d", "payload %02d", ""])
async def test_what_is_loaded_is_as_if_it_was_published(tmp_path: Path, config: dict[str, Any], payload: str) -> None:
    (tmp_path / "one").mkdir()
    payloads = [(payload % n if payload else "").encode() for n in range(100)]
    found, state = await loaded(tmp_path / "one", payloads, **config)
    plain = [Outgoing(subject, data) for subject, data in zip(PLAIN, payloads, strict=True)]
    published = [Outgoing("orders.0é", b"before"), *plain, *MESSAGES, *plain, Outgoing("orders.0é", b"after")]
    async with pelton.open(tmp_path / "t.pelton") as jet:
        stream = await jet.create_stream("orders", subjects=["orders.>"], allow_direct=True, **config)
        await jet.backend.publish_batch(published)
        expected = (await stream.info(subjects_filter=">")).state
        held = await stream.get_messages(256) + await stream.get_messages(256, seq=201)
    assert found == [(m.seq, m.subject, m.data, m.hdrs or None) for m in {m.seq: m for m in held}.values()]
    for field in ("messages", "bytes", "first_seq", "last_seq", "num_subjects", "subjects"):
        assert getattr(state, field) == getattr(expected, field)


async def test_a_load_that_is_undone_leaves_nothing(tmp_path: Path) -> None:
    stage(tmp_path / "file")
    async with pelton.open(tmp_path / "s.pelton") as jet:
        stream = await jet.create_stream("orders", subjects=["orders.>"])

        async def load_and_fail() -> None:
            transaction = jet.backend.transaction(60.0)
            async with Savepoint(transaction):
                await load(transaction, str(tmp_path / "file"))
                await transaction.publish([Outgoing("cars", b"")])

        with pytest.raises(NoStreamForSubjectError):
            await load_and_fail()
        assert (await stream.info()).state.messages == 0
        assert (await jet.publish("orders.1", b"")).seq == 1
