"""Which names are public, and on which page of the reference each of them is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Final, NamedTuple

import pelton


class ReferencePage(NamedTuple):
    """A page of the reference: what it is about, and the modules whose public names it shows."""

    title: str
    about: str
    modules: tuple[str, ...]


# A name belongs to the page with the longest prefix of the module that defines it.
PAGES: Final = {
    "stores": ReferencePage(
        "Stores",
        "Open a store, and everything that an open store can do. `Jet` has all operations in one place.",
        ("pelton.connect", "pelton.engine", "pelton.api.keys"),
    ),
    "streams": ReferencePage(
        "Streams, consumers, messages",
        "Publish, read, consume. The configurations of streams and consumers are on [a page of their own]"
        "(configuration.md).",
        ("pelton.jet", "pelton.api.headers", "pelton.api.times", "pelton.api.build"),
    ),
    "configuration": ReferencePage(
        "Configurations",
        "Every field of a stream and of a consumer, under NATS's own name.",
        ("pelton.api.config",),
    ),
    "infos": ReferencePage(
        "States and infos",
        "What streams, consumers and accounts tell about themselves, in NATS's own structures.",
        ("pelton.api.info",),
    ),
    "queues": ReferencePage(
        "Queues and jobs",
        "Declare jobs, enqueue them, work, look at them, cancel, pause, limit and schedule them.",
        ("pelton.queue",),
    ),
    "flows": ReferencePage(
        "Flows", "Jobs that run after each other, with each other's results.", ("pelton.queue.flow",)
    ),
    "transactions": ReferencePage(
        "Transactions",
        "Messages, acks, jobs, keys of buckets and your own SQL rows, together or not at all.",
        ("pelton.queue.enqueue.transaction", "pelton.jet.transaction"),
    ),
    "buckets": ReferencePage(
        "Key-value buckets and object stores",
        "Values under keys, and files of any size under names.",
        ("pelton.buckets",),
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
        "Requests and backends",
        "The port below the handles: what you need to talk to a store in NATS's own requests, or to write a backend.",
        ("pelton.api",),
    ),
    "testing": ReferencePage("Testing", "Tools for your tests: `pelton.testing`.", ("pelton.testing",)),
    "spark": ReferencePage("Spark", "`pelton.spark`: streams as DataFrames.", ("pelton.spark",)),
    "arrow": ReferencePage(
        "Arrow", "`pelton.arrow`: streams and queues for Polars, DuckDB and pandas.", ("pelton.arrow",)
    ),
    "observe": ReferencePage(
        "Observing",
        "What operators read: `pelton.observe`, `pelton.metrics`, `pelton.otel` and `pelton.dashboard`.",
        ("pelton.observe", "pelton.metrics", "pelton.otel", "pelton.dashboard"),
    ),
    "frameworks": ReferencePage(
        "Frameworks",
        "`pelton.contrib`: parts for Celery, Django and others. Methods that only the framework calls are left out. "
        "[The guide](../guides/jobs/frameworks.md) shows them at work.",
        ("pelton.contrib",),
    ),
    "serve": ReferencePage(
        "Serving and copying",
        "`pelton.server`, which is behind `pelton serve`, and `pelton.moving`, which is behind `pelton copy`.",
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
        "JobContext.close",
        "JobContext.end",
        "JobContext.emitted_messages",
        "JobContext.add_emitted",
        "JobContext.has_left",
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
    home = f"pelton.{package}" if package in PACKAGES else name.module
    fits = [
        (len(prefix), page)
        for page, described in PAGES.items()
        for prefix in described.modules
        if home == prefix or home.startswith(f"{prefix}.")
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
