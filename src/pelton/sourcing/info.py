"""The state of a mirror or of sources, for a stream's info."""

from __future__ import annotations

from typing import Final

import msgspec

from pelton.api import StreamSource, api_error
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
        missing = api_error("JSStreamNotFoundErr", stream=source.name)
        info.error = ErrorBody(code=missing.code, err_code=missing.err_code, description=missing.description)
        return info
    position = link.position
    if not position.load():
        return info
    origin = link.origin
    ahead = (
        origin.table.count(position.seq + 1, origin.state.last, link.plan.condition)
        if position.seq < origin.state.last
        else 0
    )
    info.lag = ahead + position.parked
    if position.active:
        info.active = Duration.of_ns(max(now - position.active, 0))
    if link.stream.config.mirror is None:
        info.seq = position.taken
    if position.problem:
        info.error = _problem(position.problem)
    return info
