"""One concept, one name: classes of two modules with the same name mean the same thing (the glossary)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
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


# Modules that share a name: only fewer.
SHARED = """
    account admission arguments backend bulk claims clock connection consumers events keys log message options
    registry rules runtime salvage session staging streams transaction turns
"""
# Functions that are called by a bare participle, which says neither what they do nor when they run: only fewer. A
# command is a verb and its object, a callback ``on_...``, a conversion ``..._of``.
PARTICIPLES = """
    archived bound changed checked committed contributed counted created decoded deleted encoded expired fired flushed
    found held known lifted listed lost made mapped met modified moved named opened ordered owned parked passed prepared
    reconfigured refused rejected removed renamed said scheduled seen served settled taken told translated unchanged
    unfinished unlisted unpacked untouched unwanted vanished wanted
"""
_QUESTION = re.compile(r"_?(is|has|may)_")
_IRREGULAR = """
    told met lost found taken begun held kept left given known said seen sent gone done made written heard rung
    drawn chosen built bound brought fed felt hidden laid led meant paid shown spent spoken stood stuck sunk
    thrown thought understood won worn
"""
_VERBS = frozenset({"embed", "feed", "heed", "need", "seed", "speed"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    """Yield all functions and methods, each with its file."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield str(path.relative_to(SOURCE)), node


def test_a_question_returns_a_bool() -> None:
    allowed = {"bool", "bool | None"}
    asked = [(path, node) for path, node in functions() if _QUESTION.match(node.name) and node.returns is not None]
    others = [(path, node.name, ast.unparse(node.returns)) for path, node in asked if node.returns is not None]
    assert [one for one in others if one[2] not in allowed and not one[2].startswith(("TypeGuard", "TypeIs"))] == []


def test_no_more_modules_share_a_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        places[path.stem].append(str(path.relative_to(SOURCE)))
    unnamed = {"__init__", "__main__", *SHARED.split()}
    assert {name: files for name, files in places.items() if len(files) > 1 and name not in unnamed} == {}


def is_participle(name: str) -> bool:
    word = name.strip("_")
    return word in _IRREGULAR.split() or (word.endswith("ed") and "_" not in word and word not in _VERBS)


def is_property(node: Function) -> bool:
    return any("property" in ast.unparse(one) or ast.unparse(one).endswith(".setter") for one in node.decorator_list)


def test_no_other_function_is_called_by_a_bare_participle() -> None:
    named = [(path, node.name) for path, node in functions() if is_participle(node.name) and not is_property(node)]
    assert [one for one in named if one[1].strip("_") not in PARTICIPLES.split()] == []
