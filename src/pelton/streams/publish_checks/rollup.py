"""Roll-ups: a message that replaces all earlier ones, of its subject or of the whole stream. Pure."""

from __future__ import annotations

from typing import Final

from pelton.api import ApiError, StreamConfig, api_error, headers
from pelton.api.go_json import quoted, whole

_HEADER: Final = headers.ROLLUP.encode() + b":"
_KINDS: Final = frozenset({"sub", "all"})


def rollup_of(block: bytes, config: StreamConfig) -> str:
    """Return what an encoded header block asks to replace: ``sub``, ``all``, or "" for nothing.

    Raises ApiError (10111) if the stream does not allow it, or for any other value.
    """
    if _HEADER not in block:
        return ""
    # As Go lowers a text: a byte that is no UTF-8 becomes the character for that.
    kind = whole(headers.asked(block, headers.ROLLUP) or "").lower()
    if not kind:
        return ""
    if not config.allow_rollup_hdrs:
        raise _failed("rollup not permitted", config.name)
    if kind not in _KINDS:
        raise _failed(f"rollup value invalid: {quoted(kind)}", config.name)
    return kind


def _failed(text: str, stream: str) -> ApiError:
    return api_error("JSStreamRollupFailedF", stream=stream, err=text)
