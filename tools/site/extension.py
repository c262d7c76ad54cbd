"""Prepares the docstrings for the site: links to public names, and the example of each operation below its text."""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

from tools.site.examples import examples
from tools.site.public import INTERNAL, public_names

_ROLE: Final = re.compile(r":(?:class|func|meth|attr|mod|data|exc):`~?([\w.]+)`")
_CODE: Final = re.compile(r"(?<![\[`\w])`(\w+(?:\.\w+)?)`(?![`\]])")
_LITERAL: Final = re.compile(r"``(.+?)``", re.DOTALL)
_ERROR: Final = re.compile(r"(?<![`\w.\[])([A-Z]\w+Error)\b(?![`\]\w])")


class Docstrings(griffe.Extension):
    """Rewrites docstrings as they are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self._public = {name.path.rpartition(".")[2]: name.path for name in reversed([*public_names()])}
        self._owners: dict[str, str] = {}
        for name in public_names():
            for base in name.value.__mro__ if isinstance(name.value, type) else ():
                path = f"{base.__module__}.{base.__qualname__}"
                if base is name.value or path not in self._owners:
                    self._owners[path] = name.path
        self._functions = {name.target: name.path.removeprefix("pelton.") for name in public_names()}
        self._examples = examples()

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring, or remove a method that no program calls."""
        if obj.docstring is None or obj.is_module:
            return
        if obj.parent is not None and f"{obj.parent.name}.{obj.name}" in INTERNAL:
            obj.parent.del_member(obj.name)
            return
        owner = self._owners.get(obj.path) or self._owners.get(obj.parent.path if obj.parent else "", "")
        obj.docstring.value = self._linked(obj.docstring.value, owner) + self._example(obj, owner)

    def _linked(self, text: str, owner: str) -> str:
        text = _ROLE.sub(lambda found: self._link(found[1], owner), text)
        # Double backticks are plain code, single ones may be names.
        kept: list[str] = []

        def keep(found: re.Match[str]) -> str:
            kept.append(found[0])
            return f"\0{len(kept) - 1}\0"

        parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.DOTALL | re.MULTILINE)
        for at in range(0, len(parts), 2):
            prose = _LITERAL.sub(keep, parts[at])
            prose = re.sub(r"\[`[^\]]+\]\[[^\]]+\]", keep, prose)
            prose = _CODE.sub(lambda found: self._known(found[1], owner), prose)
            parts[at] = _ERROR.sub(lambda found: self._known(found[1], owner), prose)
        return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], "".join(parts))

    def _known(self, name: str, owner: str) -> str:
        """Link the name of a class or function, and leave other words alone."""
        return self._link(name, owner) if name.partition(".")[0] in self._public else f"`{name}`"

    def _link(self, name: str, owner: str) -> str:
        name = name.removeprefix("pelton.")
        first, _, rest = name.partition(".")
        if owner and not rest and first not in self._public and hasattr(_class(owner), first):
            return f"[`{name}`][{owner}.{first}]"
        if first not in self._public or (rest and not hasattr(_class(self._public[first]), rest)):
            return f"`{name}`"
        return f"[`{name}`][{self._public[first]}{'.' + rest if rest else ''}]"

    def _example(self, obj: griffe.Object, owner: str) -> str:
        kind = owner.removeprefix("pelton.")
        title = self._functions.get(obj.path) or (kind if obj.is_class else f"{kind}.{obj.name}")
        found = self._examples.get(title)
        return f"\n\n**Example**\n\n{found}" if found else ""


_CLASSES: Final = {name.path: name.value for name in public_names()}


def _class(path: str) -> object:
    return _CLASSES[path]
