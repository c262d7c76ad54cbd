"""Writes the tables of the fields of configurations and other structures, from the structures themselves."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from itertools import compress
from typing import Any, Final, get_args, get_type_hints, is_typeddict

import msgspec

from pelton.api import Duration

_MODULES: Final = re.compile(r"\b(?:pelton(?:\.[a-z_]+)+|collections\.abc|typing|datetime|os|ssl)\.")


def field_texts(kind: type) -> dict[str, str]:
    """Return what is written below each field of a class: the docstrings of its attributes, also inherited ones."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("pelton."):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(text):
                found[field.target.id] = inspect.cleandoc(text.value.value)  # type: ignore[attr-defined]
    return found


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def has_fields(kind: object) -> bool:
    """Return whether a class is a structure, whose fields a table shows."""
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_typeddict(kind))


def fields_table(kind: type) -> str:
    """Return the Markdown table of the fields of a structure: name, type, default, and meaning if any is written."""
    texts = field_texts(kind)
    rows = [(name, _type(hint), default, texts.get(name, "")) for name, hint, default in _fields(kind)]
    if not rows:
        return ""
    # A column is left out if nothing is in it.
    shown = [True, True, any(row[2] for row in rows), any(row[3] for row in rows)]
    table = [("field", "type", "default", "meaning"), ("---",) * 4]
    table += [(f"`{name}`", hint, default, " ".join(text.split())) for name, hint, default, text in rows]
    return "".join(f"| {' | '.join(compress(row, shown))} |\n" for row in table)


def _fields(kind: type) -> list[tuple[str, Any, str]]:
    if is_typeddict(kind):
        return [(name, hint, "") for name, hint in get_type_hints(kind).items()]
    hints = get_type_hints(kind)
    found = []
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT:
            default = f"`{field.default}`" if isinstance(field.default, Duration) else f"`{field.default!r}`"
        elif field.default_factory is not msgspec.NODEFAULT:
            default = f"`{field.default_factory()!r}`"
        else:
            default = "required"
        found.append((field.name, hints.get(field.name, field.type), default))
    return found


def _type(hint: Any) -> str:
    choices = get_args(hint)
    if choices and all(isinstance(choice, str) for choice in choices):
        return ", ".join(f'`"{choice}"`' for choice in choices)
    text = inspect.formatannotation(hint)
    return f"`{_MODULES.sub('', text)}`"
