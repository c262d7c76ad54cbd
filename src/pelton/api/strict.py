"""Finds unknown keys in nested plain data before it becomes structs.

Replies may hold fields of newer servers, so the structs themselves ignore unknown fields. Users' arguments
and clients' requests are checked here, as the reference server does.
"""

import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

# Evaluating the annotations each time would take longer than the rest of creating a stream.
_hints_of: Final = cache(get_type_hints)


def unknown_key(kind: type[msgspec.Struct], data: Mapping[str, Any]) -> tuple[str, frozenset[str]] | None:
    """Return the first key of `data` that struct `kind`, or one nested in it, does not have, and those it has."""
    hints = _hints_of(kind)
    known = frozenset(kind.__struct_fields__)
    for key, value in data.items():
        if key not in known:
            return key, known
        nested = struct_in(hints[key])
        found = _within(nested, value) if nested else None
        if found:
            return f"{key}.{found[0]}", found[1]
    return None


def struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """Return the struct type in an annotation such as ``Struct | None`` or ``tuple[Struct, ...]``."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    if get_origin(hint) in (tuple, Union, types.UnionType):
        return next((found for arg in get_args(hint) if (found := struct_in(arg))), None)
    return None


def _within(kind: type[msgspec.Struct], value: Any) -> tuple[str, frozenset[str]] | None:
    if isinstance(value, Mapping):
        return unknown_key(kind, value)
    if isinstance(value, list | tuple):
        return next((found for item in value if (found := _within(kind, item))), None)
    return None
