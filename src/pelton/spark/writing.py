"""What a write is, once its options and columns are known: a target that was looked at, and a shape of messages.

Made on the driver, before anything is written, and pickled to every task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pelton.api import ConfigError, StreamNotFoundError
from pelton.buckets.naming import stream_of
from pelton.queue.form import JobForm
from pelton.queue.naming import QueueNames
from pelton.queue.setup import EXCLUSIVE
from pelton.spark.jobs import JobShape
from pelton.spark.ledger import Ledger, check_window
from pelton.spark.pairs import BucketShape
from pelton.spark.place import Place
from pelton.spark.subjects import StreamShape

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pelton.api import StreamConfig
    from pelton.spark.rows import Shape
    from pelton.spark.write_options import WriteOptions

_MADE_BY: Final = {
    "stream": "jet.create_stream({name!r}, subjects=[...])",
    "bucket": "jet.create_bucket({name!r})",
    "queue": "jet.queue({name!r})",
}


@dataclass(frozen=True)
class Writing:
    """A write: ``target`` is the stream that takes the messages, ``run`` tells this planning of it from all others."""

    options: WriteOptions
    target: str
    shape: Shape
    window_ns: int
    run: str
    keeps_ledger: bool


def plan(options: WriteOptions, schema: StructType, *, streaming: bool) -> Writing:
    """Look at the target, and check the columns against it. Raises ConfigError, StreamNotFoundError."""
    keeps_ledger = streaming or options.write_id is not None
    with Place(options.place) as place:
        config = _config(place, options)
        window_ns = config.duplicate_window
        if options.place.is_cluster:
            check_window(config.name, window_ns, late=options.late_replay)
            if keeps_ledger:
                place.run(Ledger(place.jet, config.name).prepare, config.num_replicas)
        run = place.jet.runtime.ids.new()
    return Writing(options, config.name, _shape(options, schema, config), window_ns, run, keeps_ledger)


def _config(place: Place, options: WriteOptions) -> StreamConfig:
    try:
        return place.stream(_stream(options)).config
    except StreamNotFoundError:
        made = _MADE_BY[options.kind].format(name=options.name)
        where = "on the cluster" if options.place.is_cluster else f"in {options.place.address}"
        raise ConfigError(f"there is no {options.kind} {options.name!r} {where}: make it first, {made}") from None


def _stream(options: WriteOptions) -> str:
    if options.kind == "bucket":
        return stream_of(options.name)
    return QueueNames(options.name).jobs if options.kind == "queue" else options.name


def _shape(options: WriteOptions, schema: StructType, config: StreamConfig) -> Shape:
    if options.kind == "stream":
        return StreamShape(schema, config, options.subject)
    if options.kind == "bucket":
        return BucketShape(schema, config)
    if EXCLUSIVE not in config.metadata:
        raise ConfigError(f"stream {config.name!r} is no queue")
    is_exclusive = config.metadata[EXCLUSIVE] == "true"
    return JobShape(schema, JobForm(QueueNames(options.name), str(options.job), exclusive=is_exclusive))
