"""cachelib's and Django's caches on a bucket, beside other processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("cachelib")
pytest.importorskip("django")

from pelton.contrib.cachelib import PeltonCache
from pelton.contrib.process_store import CachedValues, close_process_stores, process_store
from pelton.runtime import Clock


class LateClock:
    """The store's clock, some seconds ahead."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ahead = 0.0

    def now(self) -> int:
        return self._clock.now() + int(self.ahead * 1e9)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "shop.pelton")
    close_process_stores()


@pytest.fixture
def clock(store: str, monkeypatch: pytest.MonkeyPatch) -> LateClock:
    opened = process_store(store)
    late = LateClock(opened.jet.runtime.clock)
    monkeypatch.setattr(opened.jet, "runtime", replace(opened.jet.runtime, clock=late))
    return late


def test_a_cachelib_cache(store: str, clock: LateClock) -> None:
    cache = PeltonCache(store, default_timeout=60, key_prefix="p:")
    assert cache.get("a") is None
    assert cache.set("a", {"n": [1, None]})
    assert cache.get("a") == {"n": [1, None]}
    assert cache.has("a")
    assert not cache.add("a", 2)
    assert cache.add("b", 2, timeout=timedelta(seconds=5))
    assert cache.set("for ever", 1, timeout=0)
    assert cache.get_many("a", "b", "c") == [{"n": [1, None]}, 2, None]
    clock.ahead = 10
    assert cache.get("b") is None
    assert cache.add("b", 3)
    clock.ahead = 65
    assert cache.get_dict("a", "b", "for ever") == {"a": None, "b": 3, "for ever": 1}
    assert cache.delete("b")
    assert not cache.delete("b")
    assert cache.add("b", 4)
    assert cache.clear()
    assert not cache.has("for ever")


def test_keys_may_be_any_text(store: str) -> None:
    cache = PeltonCache(store)
    keys = ["", ".", "a b", "ä", "*", "a" * 1000, "a" * 1001, "a.b", "a=2Eb"]
    assert cache.set_many({key: key for key in keys}) == keys
    assert cache.get_many(*keys) == keys


def test_numbers_are_counted_beside_others(store: str) -> None:
    caches = [PeltonCache(store), PeltonCache(store)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: caches[n % 2].inc("n"), range(40)))
    assert caches[0].dec("n", 10) == 30


def test_what_is_added_twice_at_once_is_added_once(store: str) -> None:
    values = [CachedValues(store, "once") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for number in range(10):
            assert sum(pool.map(lambda one: one.add(f"k{number}", b"", 60), values)) == 1  # noqa: B023
            assert sum(pool.map(lambda one: one.remove(f"k{number}"), values)) == 1  # noqa: B023


def test_a_django_cache(store: str, clock: LateClock) -> None:
    from django.conf import settings

    if not settings.configured:
        settings.configure()
    from pelton.contrib.django.cache import PeltonDjangoCache

    cache = PeltonDjangoCache(store, {"TIMEOUT": 60, "KEY_PREFIX": "p", "OPTIONS": {"bucket": "pages"}})
    assert cache.get("a", "none") == "none"
    cache.set("a", None)
    assert cache.get("a", "none") is None
    assert cache.has_key("a")
    assert "a" in cache
    assert not cache.add("a", 1)
    assert cache.add("b", 1, timeout=5)
    assert cache.incr("b", 2) == 3
    assert cache.decr("b") == 2
    assert cache.incr_version("b") == 2
    assert (cache.get("b"), cache.get("b", version=2)) == (None, 2)
    with pytest.raises(ValueError, match="not found"):
        cache.incr("c")
    assert cache.get_or_set("c", lambda: 7, timeout=None) == 7
    assert cache.touch("a", timeout=600)
    assert not cache.touch("d")
    clock.ahead = 100
    assert cache.get_many(["a", "b", "c"]) == {"a": None, "c": 7}
    assert cache.touch("a", timeout=0)
    cache.set("c", 8, timeout=0)
    assert cache.get_many(["a", "c"]) == {}
    cache.set_many({"x": 1, "y": 2})
    cache.delete_many(["x"])
    assert cache.delete("y")
    assert not cache.delete("y")
    cache.set("z", 1)
    cache.clear()
    assert "z" not in cache
