"""Rules for a stream's mirror and sources, and for changing them. Pure.

Codes and texts are nats-server 2.15's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pelton.api import ApiError, StreamConfig, StreamSource, SubjectTransform, api_error
from pelton.sourcing.external import check_places
from pelton.sourcing.plan import key_of
from pelton.subjects import Transform, TransformError, clash_within, is_filter

_NOT_IN_NAMES: Final = frozenset(" \t\r\n.*>/\\")


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
    """Return the names of the streams that a stream takes from."""
    mirrored = [config.mirror.name] if config.mirror is not None else []
    return [*mirrored, *(source.name for source in config.sources)]


def check_mirror_change(old: StreamConfig, new: StreamConfig) -> None:
    """Raise ApiError (10055) if an update changes the mirror; but a mirror may become an ordinary stream."""
    if new.mirror is not None and new.mirror != old.mirror:
        raise _not_updatable(new)


def _not_updatable(config: StreamConfig) -> ApiError:
    return api_error("JSStreamMirrorNotUpdatableErr", stream=config.name)
