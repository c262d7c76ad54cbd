"""Files of staged messages."""

from pathlib import Path

import pytest

from pelton.api import NotAStoreError, StoreKeyError
from pelton.engine import StagedWriter, staged

MESSAGES = [(f"orders.{n}", b"payload %d" % n, b"NATS/1.0\r\na: b\r\n\r\n" if n % 3 == 0 else None) for n in range(10)]


def stage(path: Path, key: str | None = None) -> None:
    with StagedWriter(str(path), key) as writer:
        plain = MESSAGES[1:3]
        writer.add(*[[message[part] for message in MESSAGES[:1]] for part in (0, 1, 2)])  # type: ignore[arg-type]
        writer.add([subject for subject, _, _ in plain], [data for _, data, _ in plain])
        writer.add(*[[message[part] for message in MESSAGES[3:]] for part in (0, 1, 2)])  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [None, "secret"])
def test_what_is_staged_is_read_in_order(tmp_path: Path, key: str | None) -> None:
    stage(tmp_path / "file", key)
    assert [message for portion in staged(str(tmp_path / "file"), key) for message in portion] == MESSAGES
    assert (b"payload" in (tmp_path / "file").read_bytes()) == (key is None)


def test_large_portions_are_cut(tmp_path: Path) -> None:
    with StagedWriter(str(tmp_path / "file")) as writer:
        for _ in range(3):
            writer.add(["a"] * 10, [bytes(1_000_000)] * 10)
    assert [len(portion) for portion in staged(str(tmp_path / "file"))] == [10, 10, 10]


def test_a_file_that_is_gone_or_has_another_key_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="staged file is gone"):
        next(iter(staged(str(tmp_path / "file"))))
    stage(tmp_path / "file", "secret")
    with pytest.raises(StoreKeyError):
        next(iter(staged(str(tmp_path / "file"), "other")))
