"""The state of a mirror or of sources, for a stream's info."""

from __future__ import annotations

from typing import Final

import msgspec

from pelton.api import ApiError, StreamSource, api_error
from pelton.api.durations import Duration
from pelton.api.info import ErrorBody, StreamSourceInfo
from pelton.sourcing.link import SourceLink

_problem: Final = msgspec.json.Decoder(ErrorBody).decode


def source_info(source: StreamSource, link: SourceLink | None, now: int) -> StreamSourceInfo:
    """Return the state of a source; ``link`` is None if its origin does not exist."""
    info = StreamSourceInfo(
        name=source.name, filter_subject=source.filter_subject, subject_transforms=source.subject_transforms
    )
    if link is None:
        info.error = _body(api_error("JSStreamNotFoundErr", stream=source.name))
        return info
    if link.consumed is not None:
        problem = link.consumed.problem("Source" if link.stream.config.mirror is None else "Mirror")
        if problem is not None:
            info.error = _body(problem)
            return info
    position = link.position
    if not position.load():
        return info
    info.lag = _ahead(link) + position.parked
    if position.active:
        info.active = Duration.of_ns(max(now - position.active, 0))
    if link.stream.config.mirror is None:
        info.seq = position.taken
    if position.problem:
        info.error = _problem(position.problem)
    return info


def _ahead(link: SourceLink) -> int:
    """Return how many messages the origin, or the consumer that is taken from, has for a source."""
    if link.consumed is not None:
        return link.consumed.num_pending()
    origin, seq = link.origin, link.position.seq
    return origin.table.count(seq + 1, origin.state.last, link.plan.condition) if seq < origin.state.last else 0


def _body(error: ApiError) -> ErrorBody:
    return ErrorBody(code=error.code, err_code=error.err_code, description=error.description)
