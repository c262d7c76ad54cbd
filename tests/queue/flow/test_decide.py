"""What follows from the events of a flow: random programs, compared with a description that counts nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pelton.queue.builder import FlowBegin, FlowCancel, FlowEvent, NodeAdd, NodeSpec
from pelton.queue.model.states import NodeAgain, NodeEnd
from pelton.queue.progress import FlowProgress, FlowStep

NOTHING = msgspec.Raw(b"{}")
BEGIN = FlowBegin(size=0)


def job_id(node: int, generation: int, key: str = "") -> str:
    return f"{node}/{generation}"


def progress_of(specs: list[NodeSpec]) -> FlowProgress:
    return FlowProgress(specs, job_id)


@st.composite
def graphs(draw: st.DrawFn) -> list[NodeSpec]:
    specs = list[NodeSpec]()
    for node in range(draw(st.integers(1, 9))):
        before = tuple(sorted(draw(st.sets(st.integers(0, node - 1), max_size=3)))) if node else ()
        policy = draw(st.sampled_from(["cancel", "cancel", "run"]))
        specs.append(NodeSpec(job=f"j{node}", args=NOTHING, after=before, on_failure=policy))
    return specs


@dataclass
class Model:
    """How nodes are, found anew from how jobs have ended."""

    specs: list[NodeSpec]
    ends: dict[int, str] = field(default_factory=dict)
    started: dict[int, None] = field(default_factory=dict)
    cancelled: bool = False

    def states(self) -> list[str]:
        found = list[str]()
        for node, spec in enumerate(self.specs):
            before = [found[one] for one in spec.after]
            is_blocked = spec.on_failure == "cancel" and bool({*before} & {"failed", "cancelled", "expired"})
            if node in self.started:
                found.append(self.ends.get(node, "enqueued"))
            elif is_blocked or self.cancelled:
                found.append("cancelled")
            else:
                found.append("waiting")
        return found

    def ready(self) -> list[int]:
        """Return the nodes that wait for nothing."""
        states = self.states()
        return [
            node
            for node, spec in enumerate(self.specs)
            if states[node] == "waiting" and not {states[one] for one in spec.after} & {"waiting", "enqueued"}
        ]

    def start(self) -> set[int]:
        """Start what is ready, and return it."""
        ready = self.ready()
        self.started.update(dict.fromkeys(ready))
        return set(ready)


def check(model: Model, progress: FlowProgress, step: FlowStep, was_over: bool) -> None:
    before = {node for node, state in enumerate(model.states()) if state == "cancelled" and node not in model.started}
    assert set(step.enqueue) == model.start()
    assert len(set(step.enqueue)) == len(step.enqueue)
    states = model.states()
    assert progress.states == states
    assert {one.node for one in step.cancelled} <= before
    assert all(one.reason for one in step.cancelled)
    is_over = not {*states} & {"waiting", "enqueued"}
    assert progress.left == sum(state in ("waiting", "enqueued") for state in states)
    assert (progress.state == "running") == (not is_over)
    if is_over:
        assert step.ends == progress.state
        assert (step.ends == "completed") == ({*states} == {"completed"})
        assert bool(progress.error) == (step.ends != "completed")
    else:
        # Nothing vanishes: what is not over has a job that can end.
        assert "enqueued" in states
        assert step.ends == ("running" if was_over else None)


@given(graphs(), st.data())
def test_every_node_is_enqueued_once_and_after_those_before_it(specs: list[NodeSpec], data: st.DataObject) -> None:
    model, progress = Model(specs), progress_of(specs)
    log: list[FlowEvent] = [BEGIN]
    check(model, progress, progress.apply(BEGIN), was_over=False)
    for number in range(data.draw(st.integers(0, 25))):
        states, was_over = model.states(), progress.left == 0
        jobs = [node for node in model.started if states[node] in ("enqueued", "failed")]
        if not jobs:
            break
        choice = data.draw(st.integers(0, 11))
        if choice == 0:
            model.cancelled = model.cancelled or not was_over
            event: FlowEvent = FlowCancel(reason="no")
        elif choice < 4 and (failed := [node for node in jobs if states[node] == "failed"]):
            node = data.draw(st.sampled_from(failed))
            del model.ends[node]
            event = NodeAgain(node=node, id=f"{node}-{number}")
        else:
            node = data.draw(st.sampled_from(jobs))
            end = data.draw(st.sampled_from(["completed", "completed", "failed", "cancelled", "expired"]))
            if states[node] == "failed" and end != "completed":
                end = "failed"
            model.ends[node] = end
            event = NodeEnd(node=node, id=f"{node}-{number}", state=end, error="why")  # type: ignore[arg-type]
        step = progress.apply(event)
        if isinstance(event, FlowCancel) and step == FlowStep():
            continue
        log.append(event)
        check(model, progress, step, was_over)
        assert progress.apply(event) == FlowStep(), "what is told twice counts once"
    again = progress_of(specs)
    for event in log:
        again.apply(event)
    assert (again.states, again.job_ids, again.errors) == (progress.states, progress.job_ids, progress.errors)


@given(graphs(), st.data())
def test_a_flow_whose_jobs_all_complete_runs_each_of_them(specs: list[NodeSpec], data: st.DataObject) -> None:
    progress = progress_of(specs)
    step = progress.apply(BEGIN)
    running, done = list(step.enqueue), set[int]()
    while running:
        node = running.pop(data.draw(st.integers(0, len(running) - 1)))
        assert {*specs[node].after} <= done
        done.add(node)
        step = progress.apply(NodeEnd(node=node, id=progress.job_ids[node], state="completed"))
        running += step.enqueue
    assert (len(done), step.ends) == (len(specs), "completed")


def test_arguments_are_made_of_results() -> None:
    specs = [
        NodeSpec(job="a", args=NOTHING, wanted=True),
        NodeSpec(job="b", args=NOTHING, wanted=True),
        NodeSpec(
            job="c", args=msgspec.Raw(b'{"n":1}'), results={"one": 0, "all": (1, 0)}, after=(0, 1), on_failure="run"
        ),
    ]
    progress = progress_of(specs)
    progress.apply(BEGIN)
    progress.apply(NodeEnd(node=0, id="0/0", state="completed", result=msgspec.Raw(b'"x"')))
    progress.apply(NodeEnd(node=1, id="1/0", state="failed"))
    assert msgspec.json.decode(progress.arguments(2)) == {"n": 1, "one": "x", "all": [None, "x"]}
    assert progress.arguments(0) == b"{}"


def test_long_chains_and_wide_groups() -> None:
    size = 20_000
    chain = [NodeSpec(job="j", args=NOTHING, after=(node - 1,) if node else ()) for node in range(size)]
    progress = progress_of(chain)
    progress.apply(BEGIN)
    step = progress.apply(NodeEnd(node=0, id="0/0", state="failed", error="no"))
    assert (len(step.cancelled), step.ends) == (size - 1, "failed")
    assert all("'j' (job 0/0) of its flow failed: no" in one.reason for one in step.cancelled)
    step = progress.apply(NodeEnd(node=0, id="again", state="completed"))
    assert (list(step.enqueue), step.ends, progress.job_ids[1]) == ([1], "running", "1/1")
    wide = [NodeSpec(job="j", args=NOTHING) for _ in range(size)]
    wide.append(NodeSpec(job="last", args=NOTHING, after=tuple(range(size))))
    progress = progress_of(wide)
    assert len(progress.apply(BEGIN).enqueue) == size
    steps = [progress.apply(NodeEnd(node=node, id=f"{node}/0", state="completed")) for node in range(size)]
    assert [list(step.enqueue) for step in steps if step.enqueue] == [[size]]


def test_a_job_that_is_redriven_before_its_end_is_told_has_not_ended() -> None:
    specs = [NodeSpec(job="a", args=NOTHING), NodeSpec(job="b", args=NOTHING, after=(0,))]
    progress = progress_of(specs)
    progress.apply(BEGIN)
    assert progress.apply(NodeAgain(node=0, id="again")) == FlowStep()
    assert progress.apply(NodeEnd(node=0, id=job_id(0, 0), state="failed", error="why")) == FlowStep()
    assert (progress.state, progress.states, progress.job_ids[0]) == ("running", ["enqueued", "waiting"], "again")
    assert list(progress.apply(NodeEnd(node=0, id="again", state="completed")).enqueue) == [1]
    assert progress.apply(NodeAgain(node=0, id="later")) == FlowStep(), "it has completed"
    assert progress.apply(NodeAgain(node=1, id=job_id(1, 0))) == FlowStep(), "told late"


@given(graphs(), graphs(), st.data())
def test_what_a_job_adds_runs_after_it_and_before_those_after_it(
    specs: list[NodeSpec], more: list[NodeSpec], data: st.DataObject
) -> None:
    progress = progress_of(specs)
    by = data.draw(st.integers(0, len(specs) - 1))
    dependents = [node for node, spec in enumerate(specs) if by in spec.after]
    running, done = list(progress.apply(BEGIN).enqueue), dict[int, int]()
    while running:
        node = running.pop(data.draw(st.integers(0, len(running) - 1)))
        assert {*progress.specs[node].after} <= done.keys()
        done[node] = len(done)
        job = progress.job_ids[node]
        if node == by:
            for number, spec in enumerate(more):
                # Told twice, and by an attempt that does not complete.
                for attempt in (1, 2, 2):
                    add = NodeAdd(by=by, id=job, attempt=attempt, number=number, node=spec)
                    assert progress.apply(add) == FlowStep()
        step = progress.apply(NodeEnd(node=node, id=job, state="completed", attempt=2))
        running += step.enqueue
    added = range(len(specs), len(specs) + len(more))
    assert (done.keys(), step.ends) == ({*range(added.stop)}, "completed")
    for node in added:
        spec = progress.specs[node]
        assert (spec.by, spec.job) == (by, more[node - added.start].job)
        assert done[node] > done[by]
        assert all(done[node] < done[after] for after in dependents)


def test_a_job_that_fails_adds_nothing() -> None:
    progress = progress_of([NodeSpec(job="a", args=NOTHING)])
    progress.apply(BEGIN)
    spec = NodeSpec(job="b", args=NOTHING)
    progress.apply(NodeAdd(by=0, id=job_id(0, 0), attempt=1, number=0, node=spec))
    assert progress.apply(NodeEnd(node=0, id=job_id(0, 0), state="failed", attempt=1)).ends == "failed"
    assert len(progress.specs) == 1
