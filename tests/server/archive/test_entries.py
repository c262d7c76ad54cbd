"""Entries: as the format says, in any portions, and refused where they make no sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.server.archive import END, MAGIC, ArchiveEntry, ArchiveEntryError, EntryReader, encode_entry

ENTRIES = [
    ArchiveEntry("state.json", 1795368620908333753, 0, b"", b"{}"),
    ArchiveEntry("a.ä", -5, 1 << 40, b"NATS/1.0\r\n\r\n", b"x" * 300),
    END,
]
ARCHIVE = MAGIC + b"".join(map(encode_entry, ENTRIES))


def test_an_entry_is_as_the_format_says() -> None:
    assert encode_entry(ArchiveEntry("s.0", 2, 300, b"", b"hi")) == b"\x03\x04\xac\x02\x00\x02s.0hi"
    assert encode_entry(END) == b"\x00" * 5


def test_entries_come_in_any_portions() -> None:
    for step in (1, 3, len(ARCHIVE)):
        reader = EntryReader()
        found = [each for at in range(0, len(ARCHIVE), step) for each in reader.feed(ARCHIVE[at : at + step])]
        assert found == ENTRIES
        assert reader.has_ended


@pytest.mark.parametrize(
    "data",
    [
        b"NATSARC2" + ARCHIVE[8:],
        ARCHIVE + b"\x00",
        MAGIC + b"\xff" * 11,
        MAGIC + b"\xff\xff\xff\x7f\x00\x00\x00\x00",
        MAGIC + b"\x01\x00\x01\x00\x00\xff",
    ],
)
def test_what_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(ArchiveEntryError):
        list(EntryReader().feed(data))


@given(st.binary(max_size=80))
def test_no_bytes_break_it(data: bytes) -> None:
    try:
        list(EntryReader().feed(MAGIC + data))
    except ArchiveEntryError:
        return
