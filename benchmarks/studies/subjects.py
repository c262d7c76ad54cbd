"""`python -m benchmarks.studies.subjects`: how fast the subject index and the compiled filters match.

Three kinds of traffic against 10,000 filters: every subject new (cold: the trie answers), few subjects
repeated (the cache answers), and more subjects in use than fit the cache. Best of several rounds, one
thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from pelton.subjects import SubjectIndex, compile_filter, is_subject

FILTERS = 10_000
ROUNDS = 5
TARGET = 1_000_000
REGIONS = ["eu", "us", "asia", "africa"]


def filters(rnd: random.Random) -> list[str]:
    """Return literals, one-token and tail wildcards in equal parts, as consumers and subscribers have."""
    made: dict[str, None] = {}
    while len(made) < FILTERS:
        region, key = rnd.choice(REGIONS), f"car{rnd.randrange(FILTERS)}"
        made[rnd.choice([f"orders.{region}.{key}", f"orders.*.{key}", f"orders.{region}.{key}.>"])] = None
    return list(made)


def subjects(count: int) -> list[str]:
    """Return distinct subjects, most of which match a filter."""
    return [f"orders.{REGIONS[number % 4]}.car{number}" for number in range(count)]


def rate(ask: Callable[[str], object], asked: Sequence[str], before: Callable[[], object] = lambda: None) -> float:
    """Return answers per second of the best round; `before` runs untimed before each round."""
    best = float("inf")
    for _ in range(ROUNDS):
        before()
        started = time.perf_counter()
        for subject in asked:
            ask(subject)
        best = min(best, time.perf_counter() - started)
    return len(asked) / best


def index_of(held: list[str]) -> SubjectIndex[int]:
    """Return an index of the filters."""
    index: SubjectIndex[int] = SubjectIndex()
    for number, filter in enumerate(held):
        index.insert(filter, number)
    return index


def forget(index: SubjectIndex[int]) -> None:
    """Clear the cached answers, by a change of the filters."""
    index.insert("forget", -1)
    index.remove("forget", -1)


def measure() -> list[tuple[str, float]]:
    """Return all rates, each with its name."""
    held = filters(random.Random(1))
    index = index_of(held)
    few, many = subjects(20_000), subjects(200_000)
    rows = [
        ("index, every subject new", rate(index.match, few, before=lambda: forget(index))),
        ("index, subjects repeated", rate(index.match, few * 10)),
        ("index, more subjects than are cached", rate(index.match, many)),
    ]
    for filter in ("orders.eu.car1", "orders.eu.>", "orders.*.car1"):
        rows.append((f"compiled {filter}", rate(compile_filter(filter), few)))
    return [*rows, ("is_subject", rate(is_subject, few))]


def main() -> None:
    """Print the table; fail if repeated subjects are answered slower than the target."""
    rows = measure()
    print(f"{FILTERS:,} filters, best of {ROUNDS} rounds\n")
    print("| what | answers a second |\n|---|---:|")
    for name, per_second in rows:
        print(f"| {name} | {per_second:,.0f} |")
    if dict(rows)["index, subjects repeated"] < TARGET:
        raise SystemExit(f"repeated subjects: below the target of {TARGET:,} a second")


if __name__ == "__main__":
    main()
