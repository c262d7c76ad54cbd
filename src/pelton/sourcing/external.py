"""Where sources and mirrors take their messages: ``external`` (ADR-59) and ``consumer`` (ADR-60). Pure.

What a server refuses is refused with its codes. A place outside of the store, which a server would accept, is refused
as well, with an error that names the alternative, ``feed``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pelton.api import ConfigError, StreamConfig, StreamSource, api_error
from pelton.api.config import External, SourceConsumer
from pelton.subjects import is_subject

_API: Final = "$JS.API"
_NOT_IN_NAMES: Final = frozenset(" \t\r\n.*>/\\")


def check_places(config: StreamConfig) -> None:
    """Raise ApiError or ConfigError if a mirror or source is outside of the store."""
    named = set()
    for kind, source in _origins(config):
        consumer = source.consumer
        if consumer is not None:
            if not _is_consumer(source, consumer):
                raise api_error(f"JS{kind}DurableConsumerCfgInvalid", stream=config.name)
            if (source.name, consumer.name) in named:
                raise api_error("JSSourceDurableConsumerDuplicateDetected", stream=config.name)
            named.add((source.name, consumer.name))
        if source.external is not None:
            _check_external(config, source.external)
    for kind, source in _origins(config):
        if source.external is not None:
            raise _elsewhere(config, kind, source)


def _origins(config: StreamConfig) -> Iterator[tuple[str, StreamSource]]:
    if config.mirror is not None:
        yield "Mirror", config.mirror
    for source in config.sources:
        yield "Source", source


def _is_consumer(source: StreamSource, consumer: SourceConsumer) -> bool:
    """Whether a consumer can be used as a source: it alone then decides on the start and the filters."""
    named = bool(consumer.name) and not any(char in _NOT_IN_NAMES for char in consumer.name)
    chosen = source.filter_subject or source.opt_start_seq or source.opt_start_time
    return named and is_subject(consumer.deliver_subject) and not chosen


def _check_external(config: StreamConfig, external: External) -> None:
    if external.deliver and not is_subject(external.deliver):
        raise api_error("JSStreamInvalidExternalDeliverySubjErrF", stream=config.name, prefix=external.deliver)
    if external.api and not is_subject(external.api):
        text = f'stream external api prefix "{external.api}" must be a valid subject without wildcards'
        raise api_error("JSStreamInvalidConfigF", stream=config.name, err=text)
    if external.api == _API:
        raise api_error("JSStreamExternalApiOverlapErrF", stream=config.name, prefix=external.api, subject=_API)


def _elsewhere(config: StreamConfig, kind: str, source: StreamSource) -> ConfigError:
    return ConfigError(
        f"stream {config.name!r}: 'external' in its {kind.lower()} of {source.name!r} refers to a NATS system, "
        "but an embedded store takes from its own streams only: leave it out, or copy the messages with "
        f"other.feed({source.name!r}, jet)"
    )
