"""Reads the code blocks of the pages, and runs them as a reader would."""

import ast
import asyncio
import inspect
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAID = re.compile(r"^\s*print\(.*\)  # (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, the line it begins at, its text."""

    language: str
    line: int
    text: str


def blocks(page: Path, language: str) -> list[Block]:
    return [block for block in _all(page.read_text()) if block.language == language]


def _all(text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        yield Block(found[1], text.count("\n", 0, found.start()) + 2, found[2])


def promised(block: Block) -> list[str]:
    """Return the expected output in the comments behind ``print`` calls."""
    return _SAID.findall(block.text)


async def run_page(page: Path, **given: object) -> None:
    """Run the Python blocks of a page one after another, in one namespace, as ``python -m asyncio`` would.

    ``given`` are names that the page assumes.

    A block that runs its own event loop is a complete program, and gets a thread.
    """
    namespace: dict[str, object] = {"__name__": "__main__", **given}
    for block in blocks(page, "python"):
        printed = io.StringIO()
        with redirect_stdout(printed):
            if "asyncio.run(" in block.text:
                await asyncio.to_thread(_run_program, page, block)
            else:
                await _run_block(page, block, namespace)
        said = printed.getvalue().splitlines()
        assert said == promised(block), f"{page.name}, line {block.line}"


def _run_program(page: Path, block: Block) -> None:
    exec(_compiled(page, block, 0), {"__name__": "__main__"})


async def _run_block(page: Path, block: Block, namespace: dict[str, object]) -> None:
    result = eval(_compiled(page, block, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
    if inspect.iscoroutine(result):
        await result


def _compiled(page: Path, block: Block, flags: int) -> object:
    # Blank lines in front, so that a traceback shows the page's own line.
    return compile("\n" * (block.line - 1) + block.text, str(page), "exec", flags=flags)
