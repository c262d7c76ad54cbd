"""The page that follows calls through the code: each file exists, and holds what the page describes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "walkthrough.md"
WALKS = {title: text for title, _, text in (part.partition("\n") for part in PAGE.read_text().split("\n## ")[1:])}
_STEP = re.compile(r"\]\((?P<path>\.\./src/[^)]+)\)(?P<text>.*?)(?=\]\(\.\./src/|\Z)", re.DOTALL)
_NAME = re.compile(r"`(\w+)`")
FOREIGN = {"PullRequest"}  # named beside the file, defined elsewhere


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_takes_ten_files_at_most(walk: str) -> None:
    steps = list(_STEP.finditer(WALKS[walk]))
    assert 1 <= len({step["path"] for step in steps}) <= 10
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
