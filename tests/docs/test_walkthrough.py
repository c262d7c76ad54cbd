"""The page that follows calls through the code: each file exists, holds what the page describes, and is entered."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pelton
from pelton.runtime import system_runtime
from pelton.server import Server, ServerSettings, StoreSettings
from pelton.server.settings import Endpoint

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "walkthrough.md"
WALKS = {title: text for title, _, text in (part.partition("\n") for part in PAGE.read_text().split("\n## ")[1:])}
_STEP = re.compile(r"\]\((?P<path>\.\./\.\./src/[^)]+)\)(?P<text>.*?)(?=\]\(\.\./\.\./src/|\Z)", re.DOTALL)
_NAME = re.compile(r"`(\w+)`")
FOREIGN = {"PullRequest"}  # named beside the file, defined elsewhere


@pytest.mark.parametrize(
    ("walk", "most"), [("A publish", 14), ("A delivery", 10), ("A job", 10), ("A client's publish", 7)]
)
def test_a_walk_takes_few_files(walk: str, most: int) -> None:
    steps = list(_STEP.finditer(WALKS[walk]))
    assert 1 <= len({step["path"] for step in steps}) <= most
    for step in steps:
        source = (PAGE.parent / step["path"]).resolve()
        assert source.is_file(), step["path"]
        defined = {
            node.name
            for node in ast.walk(ast.parse(source.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        named = set(_NAME.findall(step["text"])) - FOREIGN
        assert named, step["path"]
        assert named <= defined, f"{step['path']} has no {named - defined}"


def test_there_are_four_walks() -> None:
    assert list(WALKS) == ["A publish", "A delivery", "A job", "A client's publish"]


class Trace:
    """Which files of Pelton are entered by a call, on any thread that was started since."""

    def __init__(self) -> None:
        self._root = str(Path(pelton.__file__).parent)
        self._entered: set[str] | None = None

    def note(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._entered is not None and event == "call" and frame.f_code.co_filename.startswith(self._root):
            self._entered.add(Path(frame.f_code.co_filename).relative_to(self._root).as_posix())

    async def of(self, call: Callable[[], Awaitable[object]]) -> set[str]:
        """Return what each of several calls enters; what only some enter, another task has entered beside them.

        The first ones warm up. That a sync has waited for a CPU is asked only if it took long.
        """
        found = list[set[str]]()
        for _ in range(6):
            found.append(set())
            self._entered = found[-1]
            await call()
            self._entered = None
        return set.intersection(*found[3:]) - {"runtime/clock.py"}


@pytest.fixture
def trace() -> Iterator[Trace]:
    found = Trace()
    # A slow sync runs on a thread of its own, which may be started by the first one.
    threading.setprofile(found.note)
    sys.setprofile(found.note)
    yield found
    sys.setprofile(None)
    threading.setprofile(None)


def named_in(walk: str) -> set[str]:
    return {step["path"].removeprefix("../../src/pelton/") for step in _STEP.finditer(WALKS[walk])}


async def test_a_publish_enters_the_files_that_its_walk_names(trace: Trace, tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "s.pelton") as jet:
        await jet.create_stream("orders", subjects=["orders.>"])
        assert await trace.of(lambda: jet.publish("orders.eu.1", b"a spade")) == named_in("A publish")


async def test_a_client_enters_what_its_walk_names_beside_the_files_of_a_publish(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "s.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("orders", subjects=["orders.>"])
    settings = ServerSettings(endpoints=(Endpoint(port=-1),), stores={"$G": StoreSettings(path=str(path))})
    server = Server(settings, system_runtime())
    await server.start()
    reader, writer = await asyncio.open_connection(*str(server.endpoints[0]).rsplit(":", 1))
    writer.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB _INBOX.> 1\r\nPING\r\n')
    await reader.readuntil(b"PONG\r\n")

    async def publish() -> None:
        writer.write(b"PUB orders.eu.1 _INBOX.1 7\r\na spade\r\n")
        await reader.readuntil(b"}\r\n")

    try:
        entered = await trace.of(publish)
    finally:
        writer.close()
        await server.close()
    assert entered - named_in("A publish") == named_in("A client's publish")
    assert named_in("A publish") - entered == {"jet/streams.py"}
