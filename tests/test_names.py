"""One concept, one name: classes of two modules with the same name mean the same thing (see docs/glossary.md)."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "pelton"

# Two sides of one concept: a stream as users see it, and as it is stored.
SAME_CONCEPT = {"StreamState"}


def classes() -> dict[str, list[str]]:
    """Return where each public class name is defined; the blocking API has the names of the classes it wraps."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        if "management" in path.parts:
            continue  # Django wants each of its commands to be a class Command
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SOURCE)))
    return found


def test_class_names_are_unique() -> None:
    repeated = {name: places for name, places in classes().items() if len(places) > 1 and name not in SAME_CONCEPT}
    assert not repeated


def test_what_is_listed_as_the_same_concept_is_there_twice() -> None:
    found = classes()
    assert {name for name in SAME_CONCEPT if len(found[name]) < 2} == set()
