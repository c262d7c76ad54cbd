"""Any bit of a store flips: nothing ends in an exception that is not Pelton's, and salvage leaves a sound store."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import pelton
from pelton.api import PeltonError
from tests.storage.stores import raw

_PAGE = 4096
_STREAMS = {"plain": 60, "work": 30, "sourced": 60, "sched": 1, "interest": 5, "KV_b": 18}
_SEEDS = {"short": range(4), "first-long": range(4, 200), "second-long": range(200, 400)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with rows in most tables."""
    path = tmp_path_factory.mktemp("whole") / "a.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("plain", subjects=["plain.>"], max_msgs=1000)
        jet.publish_batch([(f"plain.{number % 7}", b"payload-%d" % number * 5) for number in range(60)])
        work = jet.create_stream("work", subjects=["work.>"], retention="workqueue", allow_msg_ttl=True)
        consumer = work.create_consumer(durable_name="c", max_ack_pending_per_subject=1, ack_wait=600)
        for number in range(31):
            options = {"ttl": 600} if number % 2 else {"msg_id": str(number)}
            jet.publish(f"work.{number % 5}", b"job", **options)
        consumer.fetch(4)[0].ack()
        jet.create_stream("sourced", sources=[{"name": "plain"}])
        jet.create_stream("sched", subjects=["sched.>"], allow_msg_schedules=True, allow_msg_ttl=True)
        jet.schedule("sched.x", b"z", target="sched.y", delay=3600)
        bucket = jet.create_bucket("b", history=3)
        for number in range(20):
            bucket.put(f"k{number % 6}", b"%d" % number)
        jet.create_stream("interest", subjects=["int.>"], retention="interest").create_consumer(durable_name="c")
        jet.publish_batch([("int.a", b"1")] * 5)
    return path


def _uses(jet: pelton.sync.Jet) -> Iterator[Callable[[], object]]:
    for name in _STREAMS:
        yield lambda name=name: jet.stream(name).info()
        yield lambda name=name: jet.stream(name).get_message(5)
        yield lambda name=name: jet.stream(name).consumer_names()
    yield lambda: jet.publish("plain.1")
    yield lambda: jet.publish("work.1", msg_id="3")
    for name in ("work", "interest"):
        yield lambda name=name: [one.ack() for one in jet.stream(name).consumer("c").fetch(5, no_wait=True)]
        yield lambda name=name: jet.stream(name).consumer("c").info()
    yield lambda: jet.bucket("b").put("k2", b"new")
    yield lambda: list(jet.bucket("b").keys())
    yield lambda: (jet.stream_names(), jet.account_info())
    yield lambda: jet.create_stream("new")
    yield lambda: jet.delete_stream("sourced")


def _use_all(path: Path) -> None:
    with suppress(PeltonError), pelton.sync.open(path) as jet:
        for use in _uses(jet):
            with suppress(PeltonError):
                use()


def _messages(jet: pelton.sync.Jet, name: str) -> int:
    found = 0
    with suppress(PeltonError):
        info = jet.stream(name).info().state
        for seq in range(info.first_seq, info.last_seq + 1):
            with suppress(PeltonError):
                jet.stream(name).get_message(seq)
                found += 1
    return found


def _owner(path: Path, page: int) -> str | None:
    with raw(path) as connection:
        return next((name for (name,) in connection.execute("SELECT name FROM dbstat WHERE pageno=?", (page,))), None)


@pytest.mark.parametrize("seeds", _SEEDS.values(), ids=_SEEDS)
def test_a_flipped_bit(store: Path, tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        path, saved = tmp_path / f"{seed}.pelton", tmp_path / f"{seed}-saved.pelton"
        content = bytearray(store.read_bytes())
        place = draw.randrange(100, len(content))
        content[place] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        with suppress(PeltonError):
            pelton.verify(path)
        with suppress(PeltonError):
            lost = pelton.salvage(path, saved)
            assert pelton.verify(saved) == [], f"seed {seed}"
            owner = _owner(store, place // _PAGE + 1)
            with pelton.sync.open(saved) as jet:
                kept = {name: _messages(jet, name) for name in _STREAMS}
            assert kept == _STREAMS or lost, f"seed {seed}: {kept}"
            if owner is not None and owner.startswith("m_"):
                assert sum(kept[name] != _STREAMS[name] for name in kept) <= 1, f"seed {seed}: {kept}"
            _use_all(saved)
        _use_all(path)
        for each in tmp_path.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
