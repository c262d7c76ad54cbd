"""One mirror or source, compiled, and the rules for declaring and changing them. Pure.

**Rules for a stream's mirror and sources, and for changing them. Pure.** Codes and texts are nats-server 2.15's.

**Where sources and mirrors take their messages: ``external`` (ADR-59) and ``consumer`` (ADR-60). Pure.** What a server
refuses is refused with its codes. A stream in another JetStream is taken from while the store is served as a leaf node
that reaches it, and waited for until then, as on a server; but not by way of a consumer that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Final

from pelton.api import ConfigError, StreamConfig, StreamSource, SubjectTransform, api_error, headers
from pelton.api.config import External, SourceConsumer
from pelton.storage import Condition, subject_condition
from pelton.subjects import Draw, Transform, TransformError, clash_within, first_match, is_filter, is_subject

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ALL: Final = ">"
_BETWEEN: Final = "\f"
_CONDITIONS: Final = "Nats-Expected-"
_OURS: Final = b"\nNats-"


def filters_of(source: StreamSource) -> tuple[str, ...]:
    """Return the filters of the messages to take; empty for all."""
    named = tuple(transform.src for transform in source.subject_transforms)
    return named or ((source.filter_subject,) if source.filter_subject else ())


def key_of(source: StreamSource) -> str:
    """Return the key that distinguishes a source from others of the same stream: origin, filters and destinations."""
    dests = (transform.dest or _ALL for transform in source.subject_transforms)
    filters = _BETWEEN.join(filters_of(source)) or _ALL
    return f"{_label_of(source)} {filters} {_BETWEEN.join(dests) or _ALL}"


def _label_of(source: StreamSource) -> str:
    """Return how nats-server calls a source: by its origin, and the consumer that it takes from."""
    place = f":{_hash(source.external.api)}" if source.external is not None else ""
    return source.name + place if source.consumer is None else f"{source.name}{place}:C={_hash(source.consumer.name)}"


def identity_of(name: str, created: object) -> str:
    """Return eight characters that distinguish a stream from an earlier one of the same name."""
    return _hash(f"{name} {created}")


def _hash(text: str) -> str:
    digest = sha256(text.encode()).digest()
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in digest[:8])


class Plan:
    """How to treat the messages of a source's origin.

    What is compiled is compiled when it is first needed: a source may have thousands of transforms.
    """

    def __init__(self, source: StreamSource, draw: Draw) -> None:
        self.source = source
        self._draw = draw
        self.key: str = key_of(source)
        self.filters: tuple[str, ...] = filters_of(source)
        self._transforms: dict[int, Transform] = {}
        # The part of the source header between the sequence and the subject.
        self._label = _label_of(source)
        self._middle = self.key.removeprefix(f"{self._label} ")

    @cached_property
    def condition(self) -> Condition | None:
        """The messages to take, None for all."""
        return subject_condition(self.filters)

    @cached_property
    def _first(self) -> Callable[[str], int | None]:
        return first_match(self.filters)

    def takes(self, subject: str) -> bool:
        """Whether messages of a subject are taken."""
        return not self.filters or self._first(subject) is not None

    def subject_of(self, subject: str) -> str:
        """Return the subject under which a message is stored."""
        named = self.source.subject_transforms
        index = self._first(subject) if named else None
        if index is None or not named[index].dest:
            return subject
        transform = self._transforms.get(index)
        if transform is None:
            transform = self._transforms[index] = Transform(named[index].src, named[index].dest, self._draw)
        return transform.apply(subject) or subject

    def sign(self, hdr: bytes | None, seq: int, subject: str, identity: str) -> bytes:
        """Return a header block that also names the message's origin, without conditions and older such headers."""
        line = f"{headers.STREAM_SOURCE}: {self._label} {seq} {self._middle} {subject} {identity}\r\n\r\n"
        if not hdr:
            return f"NATS/1.0\r\n{line}".encode()
        if _OURS in hdr:
            hdr = headers.without_headers(hdr, headers.STREAM_SOURCE, _CONDITIONS)
        return hdr[:-2] + line.encode()


def unconditional(hdr: bytes | None) -> bytes | None:
    """Return a block without the conditions of the original publisher."""
    return hdr if hdr is None or _OURS not in hdr else headers.without_headers(hdr, _CONDITIONS)


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
        if source.external is not None and source.consumer is not None:
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
        f"stream {config.name!r}: its {kind.lower()} of {source.name!r} has 'external' and 'consumer', but a store "
        "takes from consumers of its own streams only: leave 'consumer' out, or copy the messages with "
        f"other.feed({source.name!r}, jet)"
    )


def check_sourcing(config: StreamConfig) -> None:
    """Raise ApiError or ConfigError if the mirror or sources of a resolved configuration are invalid."""
    if config.mirror is not None:
        _check_mirror(config, config.mirror)
    keys = set()
    if not all(_is_name(source.name) for source in config.sources):
        raise api_error("JSSourceInvalidStreamName", stream=config.name)
    check_places(config)
    for source in config.sources:
        key = key_of(source)
        if key in keys:
            raise api_error("JSSourceDuplicateDetected", stream=config.name)
        keys.add(key)
        _check_subjects(config, source, "Source")


def _check_mirror(config: StreamConfig, mirror: StreamSource) -> None:
    refusals = {
        "JSMirrorWithFirstSeqErr": config.first_seq > 0,
        "JSMirrorWithSubjectsErr": bool(config.subjects),
        "JSMirrorWithSourcesErr": bool(config.sources),
        "JSMirrorWithCountersErr": config.allow_msg_counter,
        "JSMirrorWithAtomicPublishErr": config.allow_atomic,
        "JSMirrorWithBatchPublishErr": config.allow_batched,
        "JSMirrorInvalidStreamName": not _is_name(mirror.name),
    }
    for constant, refused in refusals.items():
        if refused:
            raise api_error(constant, stream=config.name)
    check_places(config)
    _check_subjects(config, mirror, "Mirror")


def _is_name(name: str) -> bool:
    return bool(name) and not any(char in _NOT_IN_NAMES for char in name)


def _check_subjects(config: StreamConfig, source: StreamSource, kind: str) -> None:
    filters, transforms = source.filter_subject, source.subject_transforms
    if filters and transforms:
        raise api_error(f"JS{kind}MultipleFiltersNotAllowed", stream=config.name)
    if filters and not is_filter(filters):
        text = f"subject filter '{filters}' for the {kind.lower()}{':' if kind == 'Source' else ''} invalid subject"
        raise api_error("JSStreamCreateErrF", stream=config.name, err=text)
    for transform in transforms:
        _check_transform(config, transform, kind)
    if clash_within([transform.src for transform in transforms]):
        raise api_error(f"JS{kind}OverlappingSubjectFilters", stream=config.name)


def _check_transform(config: StreamConfig, transform: SubjectTransform, kind: str) -> None:
    if not is_filter(transform.src):
        err = f"invalid subject {transform.src}"
        raise api_error(f"JS{kind}InvalidSubjectFilter", stream=config.name, err=err)
    try:
        if transform.dest:
            Transform(transform.src, transform.dest, lambda below: 0)
    except TransformError as error:
        raise api_error(f"JS{kind}InvalidTransformDestination", stream=config.name, err=error) from None


def check_circle(config: StreamConfig, others: Iterable[StreamConfig]) -> None:
    """Raise ApiError (10052) if a stream would, directly or indirectly, take from itself, regardless of filters."""
    if not origins_of(config):
        return
    origins = {other.name: origins_of(other) for other in others} | {config.name: origins_of(config)}
    if config.name in _reachable(origins, config.name):
        raise api_error("JSStreamInvalidConfigF", stream=config.name, err="detected cycle")


def _reachable(origins: Mapping[str, Sequence[str]], name: str) -> set[str]:
    found: set[str] = set()
    left = list(origins.get(name, ()))
    while left:
        origin = left.pop()
        if origin not in found:
            found.add(origin)
            left += origins.get(origin, ())
    return found


def origins_of(config: StreamConfig) -> list[str]:
    """Return the names of the streams of the store that a stream takes from."""
    return [source.name for _, source in _origins(config) if source.external is None]


def check_mirror_change(old: StreamConfig, new: StreamConfig) -> None:
    """Raise ApiError (10055) if an update changes the mirror; but a mirror may become an ordinary stream."""
    if new.mirror is not None and new.mirror != old.mirror:
        raise api_error("JSStreamMirrorNotUpdatableErr", stream=new.name)
