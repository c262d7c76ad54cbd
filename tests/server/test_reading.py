"""How much of one client is read before others have their turn."""

from __future__ import annotations

from pelton.server.connection import SharedBuffer


def rooms(buffer: SharedBuffer, *readers: int) -> list[int]:
    return [len(buffer.room_for(reader)) for reader in readers]


def test_who_is_alone_gets_more_at_a_time() -> None:
    buffer = SharedBuffer()
    little, *_, much = rooms(buffer, *[1] * 100)
    assert little < much == len(buffer.whole)
    assert rooms(buffer, 2, 1, 1) == [little] * 3


def test_what_was_read() -> None:
    buffer = SharedBuffer()
    buffer.room_for(1)[:3] = b"abc"
    assert buffer.take(2) == b"ab"
