"""The same models, with each step in one of four processes that have the store open, and that are killed in between."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import ProcessesMachine, StoreMachine
from tests.model.test_batches import BatchMachine
from tests.model.test_consumer import ConsumerMachine
from tests.model.test_counters import CounterMachine
from tests.model.test_interest import InterestMachine
from tests.model.test_sourcing import Sourcing
from tests.model.test_stream import StreamMachine
from tests.model.test_time import TimeMachine

_MACHINES = (BatchMachine, ConsumerMachine, CounterMachine, InterestMachine, Sourcing, StreamMachine, TimeMachine)


@pytest.mark.parametrize("examples", [pytest.param(2, id="short"), pytest.param(15, id="long")])
@pytest.mark.parametrize("machine", _MACHINES)
def test_what_four_processes_do_is_what_the_model_does(machine: type[StoreMachine], examples: int) -> None:
    in_processes = type(f"{machine.__name__}InProcesses", (ProcessesMachine, machine), {})
    run_state_machine_as_test(in_processes, settings=settings(max_examples=examples))  # type: ignore[no-untyped-call]
