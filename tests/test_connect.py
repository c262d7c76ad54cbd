"""From an address to an open store: what is accepted, and what is refused."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import pelton


async def test_a_path_a_path_object_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("plain", tmp_path / "object", str(tmp_path / "absolute"), "memory:"):
        async with pelton.open(address) as jet:
            await jet.create_stream("s")
            assert (await jet.publish("s")).seq == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["absolute", "object", "plain"]


async def test_memory_stores_are_apart() -> None:
    async with pelton.open("memory:") as one, pelton.open("memory:") as two:
        await one.create_stream("s")
        assert await two.stream_names() == []


@pytest.mark.parametrize("sync", ["commit", "interval", "off"])
async def test_every_sync_mode_keeps_what_it_acknowledged(tmp_path: Path, sync: Any) -> None:
    interval = {"sync_interval": timedelta(milliseconds=1)} if sync == "interval" else {}
    async with pelton.open(tmp_path / "s", sync=sync, **interval) as jet:
        await jet.create_stream("s")
        await jet.publish("s", b"kept")
    async with pelton.open(tmp_path / "s") as jet:
        assert (await (await jet.stream("s")).get_message(1)).data == b"kept"


@pytest.mark.parametrize(
    ("address", "options", "words"),
    [
        ("memory:", {"sync": "always"}, "sync is 'always'"),
        ("memory:", {"sync_interval": -1}, "sync_interval"),
        ("memory:", {"busy_timeout": "long"}, "busy_timeout"),
        ("http://host", {}, "http:// is not supported"),
    ],
)
async def test_what_cannot_be_opened_is_told_at_once(address: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(pelton.ConfigError, match=words):
        pelton.open(address, **options)


async def test_an_opening_that_is_never_used_opens_nothing(tmp_path: Path) -> None:
    pelton.open(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_a_python_without_its_lock_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    with pytest.warns(RuntimeWarning, match="PYTHON_GIL=1"):
        pelton.open("memory:")
    monkeypatch.setattr("sys._is_gil_enabled", lambda: True, raising=False)
    pelton.open("memory:")
