"""Settings that all tests share: how many examples Hypothesis tries.

`make test` runs few examples of each and `make test-slow` a hundred, always the same; `pytest` alone runs a hundred new
ones, `pytest --hypothesis-profile thorough` a thousand.
The comparison with a real server (`tests/differential`) is always the same in `make test-slow`, and thousands of new
programs in `make differential`.
"""

import gc
import signal

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports it: so that failed assertions of the cases show their values.
pytest.register_assert_rewrite("tests.conformance.cases")

from tests.reporting import pytest_terminal_summary  # noqa: E402, F401  # the hook
from tests.slow import mark_what_is_slow  # noqa: E402
from tests.spark.session import spark  # noqa: E402, F401  # after the line above; the fixture

_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

settings.register_profile("default", _COMMON, stateful_step_count=30)
# The same examples in every run of `make`: a new one that fails is for those who look for it.
settings.register_profile("quick", _COMMON, max_examples=10, stateful_step_count=20, derandomize=True)
settings.register_profile("same", _COMMON, stateful_step_count=30, derandomize=True)
settings.register_profile("thorough", _COMMON, max_examples=1000, stateful_step_count=50)
settings.register_profile("differential", _COMMON, max_examples=2000)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _sigint_is_pythons() -> None:
    """A Spark context leaves its own SIGINT handler in the process, which a worker would take for the program's."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_what_is_slow(items)
    # The tests that share Spark's session come first: the processes of a run take over the last tests of each other,
    # and each would start a session of its own.
    items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking through all that was collected, again and again."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--images", default=50, help="how many power losses are played (make power: 1000)")
    parser.addoption(
        "--kills", default=40, help="how many processes that carry messages, or run jobs, are killed (all: 200)"
    )
    parser.addoption("--restarts", default=6, help="kills and stops of a server at work, two to one (make crash: 300)")
    parser.addoption("--object-size", default=64, type=int, help="MiB of the object that must not fill the memory")
    parser.addoption("--power-seed", default=20251121, help="which programs lose power")
    parser.addoption("--simulated", type=int, default=40, help="simulated elections and locks (make safety: 1000)")
    parser.addoption("--stopped", type=int, default=2, help="real ones, with processes stopped and killed (all: 50)")
    parser.addoption("--troubles", default=40, help="kills, stops and the like of a storm (make storm: 900)")
    parser.addoption("--cancelled", default=2000, help="operations that are cancelled (make storm: 30000)")
    parser.addoption("--fillings", default=20, help="how often the disk is filled (make storm: 400)")
    parser.addoption("--storm-seed", default=20260711, help="which storms, cancellations and full disks")
    parser.addoption("--histories", default=3, help="histories of buckets, to be linearizable (make linear: 500)")
    parser.addoption(
        "--connect", action="store_true", help="Spark Connect: foreachBatch too, which a busy machine fails"
    )
    parser.addoption("--declarative", action="store_true", help="run the example of Declarative Pipelines: a minute")
