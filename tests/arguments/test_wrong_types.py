"""Whatever an argument is, a public method takes it or raises a PeltonError; and the store goes on."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from pathlib import Path

import pytest

import pelton
from tests.arguments.surface import Case, World, call, cases, world

WRONG = (None, 3, -1, 1.5, float("nan"), "x", "", "\ud800", b"", [], {}, [3], {"a": 3}, object(), True)
ENOUGH_S = 0.05


async def _trouble(here: World, case: Case, value: object) -> str:
    """Return what came out that must not; a call that waits for what does not come is well."""
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


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_but_our_errors_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    found: list[str] = []
    by_method: dict[str, list[Case]] = defaultdict(list)
    for case in cases():
        if case.kind == kind:
            by_method[case.method].append(case)
    for method, several in by_method.items():
        async with pelton.open("memory:") as jet:
            here = await world(jet, tmp_path)
            await jet.create_stream("probe")
            for case in several:
                for value in WRONG:
                    if trouble := await _trouble(here, case, value):
                        found.append(trouble)
            try:
                assert (await jet.publish("probe", b"works")).stream == "probe"
            except Exception as error:
                found.append(f"{kind}.{method} left a store that does not work: {error!r}")
    assert not found, "\n".join(found)
