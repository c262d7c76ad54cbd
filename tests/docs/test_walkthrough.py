"""The page that follows calls through the code: each file exists, holds what the page describes, and is entered."""

from __future__ import annotations

import ast
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pelton

PAGE = Path(__file__).parents[2] / "docs" / "walkthrough.md"
WALKS = {title: text for title, _, text in (part.partition("\n") for part in PAGE.read_text().split("\n## ")[1:])}
_STEP = re.compile(r"\]\((?P<path>\.\./src/[^)]+)\)(?P<text>.*?)(?=\]\(\.\./src/|\Z)", re.DOTALL)
_NAME = re.compile(r"`(\w+)`")
FOREIGN = {"PullRequest"}  # named beside the file, defined elsewhere


@pytest.mark.parametrize(("walk", "most"), [("A publish", 16), ("A delivery", 10), ("A job", 10)])
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


def test_there_are_three_walks() -> None:
    assert list(WALKS) == ["A publish", "A delivery", "A job"]


async def test_a_publish_enters_the_files_that_its_walk_names(tmp_path: Path) -> None:
    root, entered = Path(pelton.__file__).parent, set[str]()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(root)):
            entered.add(Path(frame.f_code.co_filename).relative_to(root).as_posix())

    async with pelton.open(tmp_path / "s.pelton") as jet:
        await jet.create_stream("orders", subjects=["orders.>"])
        found = list[set[str]]()
        threading.setprofile(note)
        try:
            for _ in range(6):
                entered.clear()
                sys.setprofile(note)
                try:
                    await jet.publish("orders.eu.1", b"a spade")
                finally:
                    sys.setprofile(None)
                found.append(set(entered))
        finally:
            threading.setprofile(None)
    named = {step["path"].removeprefix("../src/pelton/") for step in _STEP.finditer(WALKS["A publish"])}
    # The first ones warm up. What only some of the others enter, another task has entered beside them.
    assert set.intersection(*found[3:]) - {"runtime/processes.py"} == named
