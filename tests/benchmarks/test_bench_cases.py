"""The list of cases is consistent: the names it uses exist, and no name occurs twice."""

import ast
from pathlib import Path

import pytest

import benchmarks
from benchmarks.case import Case
from benchmarks.cases import CASES
from benchmarks.table import titles

ROOT = Path(benchmarks.__file__).parent


def functions(module: str) -> set[str]:
    """The top-level functions of a module, read without importing it (the peers are an extra)."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def exists(target: str) -> bool:
    module, function = target.split(":")
    return function in functions(module)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_targets_exist(case: Case) -> None:
    assert all(exists(contender.target) for contender in case.contenders)
    assert case.prepare is None or exists(case.prepare)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_names_are_unique_and_asks_speak_of_contenders(case: Case) -> None:
    names = [contender.name for contender in case.contenders]
    assert len(set(names)) == len(names)
    assert all(set(ask.names()) <= set(names) for ask in case.asks)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_asks_speak_of_metrics_the_case_has(case: Case) -> None:
    assert {ask.metric for ask in case.asks} <= {metric.key for metric in case.metrics}


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert titles(CASES).startswith("publish-each")
