"""A public method accepts any argument or raises a PeltonError; and the store stays usable."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import pelton
from tests.arguments.surface import Case, World, call, cases, world
from tests.kit.nats_server import nats_server

WRONG = (None, 3, -1, 1.5, float("nan"), "x", "", "\ud800", b"", [], {}, [3], {"a": 3}, object(), True)
# The values that found most errors in memory; each position of a wrong type costs a call.
FEW = (None, 3, "x", b"", [], object())
ENOUGH_S = 0.05


async def _trouble(here: World, case: Case, value: object) -> str:
    """Return an outcome that must not happen; a call that waits forever is fine."""
    try:
        async with asyncio.timeout(ENOUGH_S):
            await call(here, case, value)
    except (pelton.PeltonError, TimeoutError):
        return ""
    except Exception as error:  # whatever else it is, is what is looked for
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = f"{os.path.basename(last.tb_frame.f_code.co_filename)}:{last.tb_lineno}" if last else ""
        return f"{case} with {value!r}: {type(error).__name__}: {error} [{where}]"
    return ""


KINDS = sorted({case.kind for case in cases()})


@asynccontextmanager
async def _opened(place: str, folder: Path) -> AsyncIterator[pelton.Jet]:
    """Open a new store for one method, so that no method sees what another one left."""
    if place == "server":
        folder.mkdir()
        with nats_server(folder) as server:
            async with pelton.open(server.url, patience=5) as jet:
                yield jet
    else:
        async with pelton.open("memory:" if place == "memory" else folder) as jet:
            yield jet


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["memory", "file", "server"])
async def test_nothing_but_our_errors_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    if place == "server" and kind == "Transaction":
        return  # a cluster has none
    monkeypatch.chdir(tmp_path)
    found: list[str] = []
    by_method: dict[str, list[Case]] = defaultdict(list)
    for case in cases():
        if case.kind == kind:
            by_method[case.method].append(case)
    for method, several in by_method.items():
        async with _opened(place, tmp_path / f"store-{method}") as jet:
            here = await world(jet, tmp_path)
            await jet.create_stream("probe")
            for case in several:
                for value in WRONG if place == "memory" else FEW:
                    if trouble := await _trouble(here, case, value):
                        found.append(trouble)
            try:
                assert (await jet.publish("probe", b"works")).stream == "probe"
            except Exception as error:
                found.append(f"{kind}.{method} left a store that does not work: {error!r}")
    assert not found, "\n".join(found)
