"""Every example runs on its own and prints what its docstring shows."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.contrib.entries import write_entry_points

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def promised(example: Path) -> str:
    story = ast.get_docstring(ast.parse(example.read_text()))
    assert story is not None
    return textwrap.dedent(story.partition("Prints::\n\n")[2]).strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_what_it_promises(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if example.stem == "celery_shop":
        write_entry_points(tmp_path)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert promised(example)
    assert done.stdout.strip() == promised(example)


def test_examples_pass_a_strict_type_check() -> None:
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", *EXAMPLES], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
