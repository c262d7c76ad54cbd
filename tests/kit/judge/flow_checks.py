"""The promises of flows, as checks of a history. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tests.kit.judge.history import Contradiction
from tests.kit.judge.record import AttemptSpan, HistoryEvent, PlannedNode, QueueHistory, broken, grouped

_MISSING = "null"


class FlowHistory:
    """What happened to one flow: the attempts and the jobs of each of its nodes."""

    def __init__(self, history: QueueHistory, enqueued: HistoryEvent) -> None:
        self.enqueued = enqueued
        self._outcomes: Mapping[str, list[HistoryEvent]] = history.outcomes
        self.spans: dict[int, list[AttemptSpan]] = defaultdict(list)
        # Of each node, in the order in which they first started; those that never did are last.
        self.jobs: dict[int, dict[str, None]] = defaultdict(dict)
        for span in history.spans:
            if span.start.flow == enqueued.flow:
                self.spans[span.start.node].append(span)
                self.jobs[span.start.node][span.start.job] = None
        self.ends: dict[int, HistoryEvent] = {
            event.node: event for event in history.of_kind("node") if event.flow == enqueued.flow
        }
        for event in self.ends.values():
            self.jobs[event.node][event.job] = None
        # What was added, by the node that has added it.
        self.added: dict[int, list[int]] = defaultdict(list)
        self.plan: list[PlannedNode] = list(enqueued.plan)
        for event in sorted(self.ends.values(), key=_number):
            if event.added_by >= 0:
                earlier = self.added[event.added_by]
                self.plan.append(PlannedNode(after=tuple(earlier[-1:])))
                earlier.append(event.node)

        # Jobs that say that they are of nodes which the flow does not have.
        self.strangers: list[AttemptSpan] = [
            span for node in [one for one in self.spans if one >= len(self.plan)] for span in self.spans.pop(node)
        ]

    def before(self, node: int) -> list[int]:
        """Return all nodes after which one comes: those of the plan, what they have added, and who has added it."""
        end = self.ends.get(node)
        found = [end.added_by] if end is not None and end.added_by >= 0 else []
        for one in self.plan[node].after:
            found += [one, *self.added[one]]
        return found

    def expected(self) -> int:
        """Return how many nodes the flow must have: what the jobs that have completed add is of it."""
        planned = self.enqueued.plan
        return len(planned) + sum(node.adds for place, node in enumerate(planned) if "completed" in self.states(place))

    def states(self, node: int) -> set[str]:
        """Return how the jobs of a node have ended."""
        return {end.state for job in self.jobs[node] for end in self._outcomes.get(job, ())}

    def results(self, node: int) -> set[str]:
        """Return what a node has returned, as JSON."""
        ends = [end for job in self.jobs[node] for end in self._outcomes.get(job, ())]
        return {end.value for end in ends if end.state == "completed"}

    def has_ended_before(self, node: int, at: int) -> bool:
        """Whether a job of a node can have ended before ``at``.

        What runs again afterwards does not count: on servers a job does whose worker dies before its last word.
        """
        for job in self.jobs[node]:
            spans = [span for span in self.spans[node] if span.start.job == job]
            ends = self._outcomes.get(job, ())
            if any(end.state == "completed" for end in ends):
                spans = [span for span in spans if span.returned]
            if ends and (not spans or any((span.over or span.start.at) < at for span in spans)):
                return True
        return False


def flows_in_order(history: QueueHistory) -> Iterator[Contradiction]:
    """The job of a node is enqueued once, after all that it comes after have ended, as it was planned."""
    redriven = {event.job for event in history.of_kind("redriven")}
    is_sure = not history.of_kind("unsure")
    for flow in _flows(history):
        for node, spans in list(flow.spans.items()):
            jobs = {span.start.job for span in spans}
            if is_sure and len(jobs) > 1 + len(jobs & redriven):
                yield broken("flow", spans[0].start, f"node {node} ran as jobs {', '.join(sorted(jobs))}")
            yield from _too_early(flow, node, spans)
        for span in flow.strangers:
            yield broken("flow", span.start, f"node {span.start.node} ran, and the flow does not have it")


def _too_early(flow: FlowHistory, node: int, spans: Sequence[AttemptSpan]) -> Iterator[Contradiction]:
    planned = flow.plan[node]
    for before in flow.before(node):
        if not planned.runs_anyway and "completed" not in flow.states(before):
            yield broken("flow", spans[0].start, f"node {node} started, and node {before} has never completed")
        for span in spans:
            if not flow.has_ended_before(before, span.start.at):
                yield broken("flow", span.start, f"node {node} started before node {before} had ended")


def results_are_passed_on(history: QueueHistory) -> Iterator[Contradiction]:
    """A node is given what those have returned after which it comes; None for one that had not completed."""
    for flow in _flows(history):
        for node, spans in flow.spans.items():
            planned = flow.plan[node]
            for span in spans:
                given = [bytes(raw).decode() for raw in msgspec.json.decode(span.start.value, type=list[msgspec.Raw])]
                if len(given) != len(planned.after):
                    yield broken("flow", span.start, f"node {node} was given {given}")
                for before, value in zip(planned.after, given, strict=False):
                    right = flow.results(before) | ({_MISSING} if planned.runs_anyway else set())
                    if value not in right:
                        text = f"was given {value} as the result of node {before}, which is {sorted(right)}"
                        yield broken("flow", span.start, f"node {node} {text}")


def cancelled_flows_end(history: QueueHistory) -> Iterator[Contradiction]:
    """Of a cancelled flow, no node starts that was waiting then."""
    cancelled = {event.flow: event for event in reversed(history.of_kind("flow cancelled"))}
    for flow in _flows(history):
        event = cancelled.get(flow.enqueued.flow)
        for node, spans in list(flow.spans.items()) if event is not None else ():
            assert event is not None
            for before in flow.before(node):
                if not flow.has_ended_before(before, event.at):
                    text = f"node {node} started, and was waiting for node {before} when its flow was cancelled"
                    yield broken("flow", spans[0].start, text)


def flows_end(history: QueueHistory) -> Iterator[Contradiction]:
    """Every flow ends, and says of each node what the outcome of its job says."""
    ended = {event.flow: event for event in history.of_kind("flow ended")}
    outcomes = grouped(history.of_kind("outcome"))
    for flow in _flows(history):
        event = ended.get(flow.enqueued.flow)
        if event is None or event.state == "running":
            yield broken("flow", flow.enqueued, f"flow {flow.enqueued.flow} has not ended")
            continue
        states = {end.state for end in flow.ends.values()}
        # What jobs add to a flow that was cancelled is not always of it.
        numbers = {len(flow.plan)} if event.state == "cancelled" else {len(flow.plan), flow.expected()}
        if numbers != {len(flow.ends)} or (event.state == "completed") != (states == {"completed"}):
            text = f"its {len(flow.ends)} nodes of {flow.expected()} are {sorted(states)}"
            yield broken("flow", event, f"flow {event.flow} is {event.state}, and {text}")
        for end in flow.ends.values():
            found = [outcome.state for outcome in outcomes.get(end.job, ())]
            if found[:1] != [end.state]:
                yield broken("flow", end, f"node {end.node} is {end.state}, and its job {', '.join(found) or 'lost'}")


def _number(event: HistoryEvent) -> int:
    return event.node


def _flows(history: QueueHistory) -> Iterator[FlowHistory]:
    for enqueued in history.of_kind("flow"):
        yield FlowHistory(history, enqueued)
