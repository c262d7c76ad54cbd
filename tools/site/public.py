"""Which names are public, and on which page of the reference each of them is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Final, NamedTuple

import pelton


class ReferencePage(NamedTuple):
    """A page of the reference: what it is about, and how what it shows begins with its module."""

    title: str
    about: str
    prefixes: tuple[str, ...]


# A name belongs to the page with the longest prefix of the module that defines it and its name there.
PAGES: Final = {
    "stores": ReferencePage(
        "Stores",
        "Open a store, and everything that an open store can do. `Jet` has all operations in one place.",
        ("pelton.connect", "pelton.api.keys"),
    ),
    "upkeep": ReferencePage(
        "Upkeep of store files", "Back up, restore, verify, salvage, compact, migrate and encrypt.", ("pelton.engine",)
    ),
    "streams": ReferencePage(
        "Streams, consumers, messages",
        "Publish, read, consume. The configurations of streams and consumers are on [a page of their own]"
        "(configuration.md), and so are [headers and times](values.md).",
        ("pelton.jet",),
    ),
    "values": ReferencePage(
        "Headers and times",
        "The headers of messages, durations, backoffs and timestamps, and how to encode them.",
        ("pelton.api.headers", "pelton.api.times"),
    ),
    "configuration": ReferencePage(
        "Configurations",
        "Every field of a stream and of a consumer, under NATS's own name.",
        ("pelton.api.config", "pelton.api.build"),
    ),
    "infos": ReferencePage(
        "States and infos",
        "What streams, consumers and accounts tell about themselves, in NATS's own structures.",
        ("pelton.api.info",),
    ),
    "queues": ReferencePage(
        "Queues",
        "Work, look at jobs, cancel, pause, limit and schedule them. [How jobs are declared](jobs.md), "
        "[what they are given as they run](running.md), [claims](claims.md) and "
        "[their options and states](job-states.md) have pages of their own.",
        ("pelton.queue",),
    ),
    "jobs": ReferencePage(
        "Jobs",
        "Declare jobs, enqueue them, wait for them. The types of declared functions are on [a page of their own]"
        "(job-types.md).",
        ("pelton.queue.job", "pelton.queue.enqueuer", "pelton.queue.job_message", "pelton.queue.registry"),
    ),
    "job-types": ReferencePage(
        "Types of jobs",
        "What a decorator makes of a function, by whether it is async, takes a context or works on batches.",
        (
            "pelton.queue.job.Async",
            "pelton.queue.job.Sync",
            "pelton.queue.job.JobDecorator",
            "pelton.queue.job.JobWithOptions",
            "pelton.queue.registry.Batch",
            "pelton.queue.enqueuer.QueueWithOptions",
        ),
    ),
    "running": ReferencePage("Running jobs", "What a job is given while it runs.", ("pelton.queue.run",)),
    "claims": ReferencePage("Claims", "Jobs for a loop of your own.", ("pelton.queue.run.claims",)),
    "job-states": ReferencePage(
        "Options and states of jobs",
        "Options of jobs, limits and rates, and what queues tell about jobs and workers.",
        ("pelton.queue.model", "pelton.queue.queue_views", "pelton.queue.steering", "pelton.queue.views"),
    ),
    "flows": ReferencePage(
        "Flows",
        "Jobs that run after each other, with each other's results.",
        ("pelton.queue.flows", "pelton.queue.builder"),
    ),
    "transactions": ReferencePage(
        "Transactions",
        "Messages, acks, jobs, keys of buckets and your own SQL rows, together or not at all.",
        ("pelton.queue.transaction", "pelton.jet.transaction"),
    ),
    "buckets": ReferencePage("Key-value buckets", "Values under keys, and how to encode both.", ("pelton.buckets",)),
    "objects": ReferencePage(
        "Object stores", "Files of any size under names.", ("pelton.buckets.object_store", "pelton.buckets.object_info")
    ),
    "locks": ReferencePage(
        "Locks, semaphores, elections", "One holder at a time, with a fencing token.", ("pelton.locks",)
    ),
    "error-classes": ReferencePage(
        "Exceptions",
        "Everything that Pelton raises. For the tree, the error codes and what to do, see [Errors](errors.md).",
        ("pelton.api.errors", "pelton.api.store_errors", "pelton.api.job_errors"),
    ),
    "event-classes": ReferencePage(
        "Events",
        "Advisories and metrics as Python objects. For their subjects, see [Events](events.md).",
        ("pelton.api.events",),
    ),
    "backend": ReferencePage(
        "Backends",
        "The port below the handles: what you need to write a backend. It answers [requests](requests.md).",
        ("pelton.api",),
    ),
    "requests": ReferencePage(
        "Requests",
        "Talk to a store in NATS's own requests: those for streams and messages, and how each is encoded. Those for "
        "consumers are on [a page of their own](consumer-requests.md).",
        ("pelton.api.requests", "pelton.api.codec"),
    ),
    "consumer-requests": ReferencePage(
        "Requests for consumers",
        "Make, list, pause, reset and remove consumers, and ask what they have not settled.",
        tuple(f"pelton.api.requests.{name}" for name in ("Consumer", "Pause", "Unpin", "Unsettled")),
    ),
    "testing": ReferencePage("Testing", "Tools for your tests: `pelton.testing`.", ("pelton.testing",)),
    "spark": ReferencePage("Spark", "`pelton.spark`: streams as DataFrames.", ("pelton.spark",)),
    "arrow": ReferencePage(
        "Arrow", "`pelton.arrow`: streams and queues for Polars, DuckDB and pandas.", ("pelton.arrow",)
    ),
    "observe": ReferencePage(
        "Observing",
        "What operators read with `pelton.observe`: the store, alarms, the audit, streams, consumers, buckets, locks "
        "and elections. "
        "[Queues](observe-queues.md), [jobs](observe-jobs.md) and [metrics](metrics.md) have pages of their own.",
        ("pelton.observe",),
    ),
    "observe-queues": ReferencePage(
        "Observing queues",
        "`pelton.observe` of queues, workers, limits, schedules, tenants and flows.",
        tuple(
            f"pelton.observe.{name}"
            for name in (
                "Limit",
                "Queue",
                "TimeSpread",
                "Worker",
                "flow_",
                "job_schedules",
                "limit_",
                "queue_",
                "tenant_",
                "worker_",
            )
        ),
    ),
    "observe-jobs": ReferencePage(
        "Observing jobs",
        "`pelton.observe` of jobs, their keys and dead letters: lists, pages, searches.",
        tuple(
            f"pelton.observe.{name}"
            for name in (
                "DeadLetter",
                "ErrorGroup",
                "Job",
                "Key",
                "dead_letter",
                "ended_jobs",
                "find_jobs",
                "group_dead",
                "job",
                "key_counts",
                "list_",
                "unfinished_jobs",
            )
        ),
    ),
    "metrics": ReferencePage(
        "Metrics, tracing, dashboard",
        "What other programs of operators read: `pelton.metrics`, `pelton.otel` and `pelton.dashboard`.",
        ("pelton.metrics", "pelton.otel", "pelton.dashboard"),
    ),
    "frameworks": ReferencePage(
        "Frameworks",
        "`pelton.contrib`: parts for Celery, Django and others. Methods that only the framework calls are left out. "
        "[The guide](../guides/jobs/frameworks.md) shows them at work.",
        ("pelton.contrib",),
    ),
    "serve": ReferencePage(
        "Serving and copying",
        "`pelton.server`, which is behind `pelton serve`, and `pelton.moving`, behind `pelton copy` and `backup`.",
        ("pelton.server", "pelton.moving"),
    ),
}
_FIRST: Final = [
    "open",
    "Jet",
    "ClusterOptions",
    "Stream",
    "Consumer",
    "Message",
    "Metadata",
    "Subscription",
    "StreamConfig",
    "ConsumerConfig",
    "StreamInfo",
    "ConsumerInfo",
    "Queue",
    "Job",
    "Jobs",
    "JobHandle",
    "JobContext",
    "JobOptions",
    "Outcome",
    "Flow",
    "FlowHandle",
    "Transaction",
    "SqlReads",
    "Bucket",
    "ObjectStore",
    "Lock",
    "LockLease",
    "Semaphore",
    "Election",
    "Term",
    "PeltonError",
    "register",
]
# Packages whose names are public, beside those of `pelton` itself.
PACKAGES: Final = (
    "testing",
    "spark",
    "arrow",
    "observe",
    "metrics",
    "otel",
    "dashboard",
    "server",
    "moving",
    "contrib.apscheduler",
    "contrib.cachelib",
    "contrib.django.backend",
    "contrib.django.cache",
    "contrib.fsspec",
    "contrib.kombu",
    "contrib.celery",
    "contrib.process_store",
    "contrib.taskiq",
)
# Classes whose methods only a framework calls.
CALLED_BY_FRAMEWORKS: Final = frozenset(
    [
        "PeltonBackend",
        "PeltonBroker",
        "PeltonJobStore",
        "PeltonResultBackend",
        "PeltonResults",
        "PeltonSource",
        "Transport",
    ]
)

# Methods that other packages of Pelton call, and no program: by the class that defines them.
INTERNAL: Final = frozenset(
    [
        "Flow.put",
        "JobSelection.has",
        "JobSelection.is_at",
        "FlowBuilder.add_with",
        "Flow.handle",
        "Flow.messages",
        "ClaimedJob.complete_encoded",
        "ClaimedJob.to_completion",
        "ClaimedJob.emit_encoded",
        "ClaimedJob.is_decided",
        "ClaimedJob.take_back",
        "LeasedJob.lose",
        "LeasedJob.take_back",
        "Job.own_queue",
        "JobDefinition.call_of",
        "JobDefinition.call_with",
        "CalledJob.blocks",
        "JobContext.call_of",
        "JobContext.close",
        "JobContext.end",
        "JobContext.emitted_messages",
        "JobContext.add_emitted",
        "JobContext.has_left",
        "JobContext.steps",
        "JobContext.lose",
        "JobContext.cancel",
        "JobContext.stop",
        "LockLease.guard",
        "LockLease.spec",
        "Term.end",
        "JobCall.with_trace",
        "JobLimit.place",
        "JobOptions.check",
        "JobRules.check",
        "JobRules.delay_after",
        "FlowNode.is_of",
        "Server.account",
        "Server.accounts",
        "Server.admit",
        "Server.facts",
        "Server.hello",
        "Server.new_nonce",
        "Server.new_number",
        "Server.on_closed",
        "Server.on_closing",
        "Server.on_entry",
        "Server.on_refusal",
        "Server.on_reload",
        "Server.reload_settings",
        "Server.send_away",
        "Server.spawn",
        "Server.take",
        "Server.clients",
        "Server.about",
        "ServerSettings.auth_timeout_of",
        "ServerSettings.told_address",
        "ServerSettings.wire",
        "WebSocketDoor.admits",
        "PeltonFileSystem.put_content",
        "Queue.open",
    ]
)


class PublicName(NamedTuple):
    """A public name: where it is imported from, what it is, and the module and name of its definition."""

    path: str
    value: object
    module: str
    qualname: str

    @property
    def target(self) -> str:
        """Where the definition is, as griffe finds it."""
        return f"{self.module}.{self.qualname}"


def public_names() -> Iterator[PublicName]:
    """Yield every public name once: those of ``pelton``, then those of the public packages that it has not."""
    seen = set()
    for name in pelton.__all__:
        value = getattr(pelton, name)
        seen.add(id(value))
        if not inspect.ismodule(value):
            yield _public(f"pelton.{name}", value)
    for package in PACKAGES:
        room = import_module(f"pelton.{package}")
        for name in _exported(room):
            value = getattr(room, name)
            if id(value) not in seen:
                seen.add(id(value))
                yield _public(f"pelton.{package}.{name}", value)


def _exported(room: ModuleType) -> list[str]:
    """Return the names of a package: those that it lists, or, of a facade, all that it imports."""
    found = [name for name, value in vars(room).items() if name[0] != "_" and not inspect.ismodule(value)]
    return getattr(room, "__all__", found)


def _public(path: str, value: object) -> PublicName:
    package, name = path.rsplit(".", 1)
    if isinstance(value, type) or inspect.isroutine(value):
        return PublicName(path, value, value.__module__, value.__qualname__)
    # A constant does not know where it is defined.
    return PublicName(path, value, _CONSTANTS.get(path, package), name)


_CONSTANTS: Final = {
    "pelton.EVENTS": "pelton.api.events",
    "pelton.VERBS": "pelton.api.requests",
    "pelton.AckKind": "pelton.api.message",
    "pelton.metrics.CATALOGUE": "pelton.observe.samples",
}


def page_of(name: PublicName) -> str:
    """Return the page of the reference that shows a name."""
    package = name.path.removeprefix("pelton.").rpartition(".")[0]
    # A package shows its names on its own page, wherever they are defined.
    home = name.path if package in PACKAGES else name.target
    fits = [
        (len(prefix), page)
        for page, described in PAGES.items()
        for prefix in described.prefixes
        if home.startswith(prefix)
    ]
    return max(fits)[1]


def names_by_page() -> dict[str, list[PublicName]]:
    """Return the public names of each page, classes before functions, in the order of their declaration."""
    found: dict[str, list[PublicName]] = {page: [] for page in PAGES}
    for name in public_names():
        found[page_of(name)].append(name)
    return {page: sorted(names, key=_rank) for page, names in found.items()}


def _rank(name: PublicName) -> tuple[int, int]:
    """Order names for a reader: what a program begins with, then the other classes, functions, constants."""
    last = name.path.rpartition(".")[2]
    kind = 0 if isinstance(name.value, type) else 1 if inspect.isroutine(name.value) else 2
    return (_FIRST.index(last), 0) if last in _FIRST else (len(_FIRST), kind)
