"""The options of a write, from text to one frozen, validated value. Pure.

Options determine where to write; columns determine what, and under which subject (``row_encoder.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pelton.api import ConfigError
from pelton.spark.options import StoreOptions, store_options

Kind = Literal["stream", "bucket", "queue"]
_KINDS: Final[tuple[Kind, ...]] = ("stream", "bucket", "queue")
_OPTIONS: Final = (
    *_KINDS,
    "subject",
    "job",
    "writeId",
    "writeVersion",
    "stagingPath",
    "onLateReplay",
    # Spark passes a query's own options to its sink.
    "checkpointLocation",
    "queryName",
)


@dataclass(frozen=True)
class WriteOptions:
    """Where to write: a ``kind`` of target and its name.

    ``write_id`` and ``version`` identify a batch write that can be repeated; ``late_replay`` allows a batch on a
    cluster to be repeated after the stream's deduplication window has passed.
    """

    store: StoreOptions
    kind: Kind
    name: str
    subject: str | None
    job: str | None
    write_id: str | None
    version: int
    staging: str | None
    late_replay: bool


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Return validated options. Raises ConfigError, also for an unknown option."""
    store, options = store_options(given, _OPTIONS)
    kind = _kind(options)
    _refuse_strays(options, kind, streaming=streaming, cluster=store.is_cluster)
    return WriteOptions(
        store=store,
        kind=kind,
        name=options[kind],
        subject=options.get("subject"),
        job=options.get("job"),
        write_id=options.get("writeId"),
        version=_version(options),
        staging=options.get("stagingPath"),
        late_replay=_late_replay(options),
    )


def _kind(options: Mapping[str, str]) -> Kind:
    kinds = [kind for kind in _KINDS if kind in options]
    if len(kinds) != 1:
        raise ConfigError("choose what to write to: set one of the options stream, bucket, queue")
    return kinds[0]


def _refuse_strays(options: Mapping[str, str], kind: Kind, *, streaming: bool, cluster: bool) -> None:
    """Refuse options that have no effect on this kind of write. Raises ConfigError."""
    if "subject" in options and kind != "stream":
        raise ConfigError(f"option subject is for streams; a {kind} has its own subjects: leave it out")
    if ("job" in options) != (kind == "queue"):
        raise ConfigError("option job names the job that a queue's workers run: set it with queue, and only there")
    if streaming and {"writeId", "writeVersion"} & set(options):
        raise ConfigError("writeId and writeVersion are for batch writes; streaming queries have their own: leave out")
    if "writeVersion" in options and "writeId" not in options:
        raise ConfigError("writeVersion counts the writes of a writeId: set writeId too")
    if cluster and "stagingPath" in options:
        raise ConfigError("stagingPath is for store files; writes to a cluster are not staged: leave it out")
    if not cluster and "onLateReplay" in options:
        raise ConfigError("onLateReplay is for clusters; a store file never stores a batch twice: leave it out")


def _version(options: Mapping[str, str]) -> int:
    text = options.get("writeVersion", "0")
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"option writeVersion is {text!r}: give a number that grows, such as the batch id")
    return int(text)


def _late_replay(options: Mapping[str, str]) -> bool:
    text = options.get("onLateReplay", "fail")
    if text not in ("fail", "write"):
        raise ConfigError(f"option onLateReplay is {text!r}: choose fail or write")
    return text == "write"
