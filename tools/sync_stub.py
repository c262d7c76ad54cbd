"""Write the type stub of ``pelton.sync`` from the async classes it is derived from.

``python -m tools.sync_stub`` writes ``src/pelton/sync/__init__.pyi``; a test compares it with what would be
written now. Signatures come from the running classes, names in annotations from the imports of the module
that wrote them, types of instance attributes from ``__init__``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pelton.sync
from pelton import api
from pelton.sync.derive import FACES, Twin, public_names, source_of
from tools.stubs import formatted

TARGET: Final = Path(pelton.sync.__file__).with_suffix(".pyi")
_HEAD: Final = '''"""Blocking twins of the async classes. Written by ``python -m tools.sync_stub``: do not edit."""

# ruff: noqa: F403, F405
# mypy: disable-error-code="overload-overlap"
'''
_BLOCKING_NAMES: Final = {
    "AsyncGenerator": "Iterator",
    "AsyncIterator": "Iterator",
    "Opening": "Jet",
}
# What a plain function is given, with the base that it has in both worlds.
_GIVEN: Final = {"JobContext": "(RunContext)", "StepsWithOptions": ""}
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


class Imports:
    """What the stub imports: names met in annotations, from where their own modules have them."""

    def __init__(self, twins: set[str]) -> None:
        self._twins = twins
        self._lines: dict[str, str] = {}
        self._tables: dict[str, dict[str, str]] = {}

    def need(self, name: str, module: str) -> None:
        """Take care that ``name``, as written in ``module``, means something in the stub."""
        if name in self._twins or hasattr(builtins, name) or name in api.__all__:
            return
        if name == "Iterator":
            self._lines[name] = "from collections.abc import Iterator"
            return
        table = self._table(module)
        self._lines.setdefault(name, table.get(name, f"from {module} import {name}"))

    def export(self, value: Any, name: str) -> None:
        """Pass a name on that is the same in both faces."""
        self._lines[name] = f"from {value.__module__} import {name} as {name}"

    def text(self) -> str:
        """Return the import statements."""
        return "\n".join(["from pelton.api import *", *sorted(self._lines.values())])

    def _table(self, module: str) -> dict[str, str]:
        if module not in self._tables:
            source = inspect.getsource(sys.modules[module])
            self._tables[module] = {
                alias.asname or alias.name: _statement(node, alias)
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
        return self._tables[module]


def _statement(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    start = f"from {node.module} import" if isinstance(node, ast.ImportFrom) else "import"
    return f"{start} {ast.unparse(alias)}"


class _Blocking(ast.NodeTransformer):
    """Replace what only async code has in an annotation, and note the names that are left."""

    def __init__(self, imports: Imports, module: str) -> None:
        self._imports = imports
        self._module = module

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        # What a blocking iterator is sent is nobody's concern: of a generator's types the first remains.
        if isinstance(node.value, ast.Name) and node.value.id == "AsyncGenerator" and isinstance(node.slice, ast.Tuple):
            node = ast.Subscript(node.value, node.slice.elts[0], node.ctx)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        name = _BLOCKING_NAMES.get(node.id) or self._twin_of_base(node.id) or node.id
        self._imports.need(name, self._module)
        return ast.Name(name)

    def _twin_of_base(self, name: str) -> str:
        """Return the twin that stands for a class of which only a subclass is public, as Streams for Jet."""
        if name in pelton.sync.__all__:
            return ""
        for public in pelton.sync.__all__:
            face = getattr(pelton.sync, public)
            if isinstance(face, type) and issubclass(face, Twin):
                bases = {base.__name__ for base in source_of(face).__mro__ if base.__module__.startswith("pelton.")}
                if name in bases:
                    return public
        return ""

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        # P.args of a ParamSpec
        self.visit(node.value)
        return node


def stub() -> str:
    """Return the text of the stub."""
    faces = {name: getattr(pelton.sync, name) for name in pelton.sync.__all__ if name not in api.__all__}
    twins = {name for name, face in faces.items() if isinstance(face, type) and issubclass(face, Twin)}
    imports = Imports(twins | _GIVEN.keys())
    parts = []
    for name, face in faces.items():
        if name in twins:
            parts.append(_class(source_of(face), imports))
        elif name in _GIVEN:
            base = f"class {name}:", f"class {name}{_GIVEN[name]}:"
            parts.append(_class(getattr(pelton, name), imports).replace(*base))
        elif hasattr(face, "__wrapped__"):
            parts.append(_function(face.__wrapped__, imports))
        else:
            imports.export(face, name)
    names = f"__all__ = {sorted(pelton.sync.__all__)!r}\n"
    return formatted(_HEAD + imports.text() + "\n\n" + names + "\n" + "\n\n".join(parts), TARGET)


def _class(source: type, imports: Imports) -> str:
    lines = [f"{name}: {text}" for name, text in _attributes(source, imports)]
    names = public_names(source)
    if _binds_parameters(source):
        # What is inherited names parameters that are bound here.
        names = [name for name in names if name in vars(source)]
    for name in names:
        member = inspect.getattr_static(source, name)
        if isinstance(member, property):
            assert member.fget is not None
            lines.append("@property\n" + _function(member.fget, imports))
        elif isinstance(member, classmethod):
            lines.append("@classmethod\n" + _function(member.__func__, imports))
        elif inspect.isfunction(member):
            lines += _methods(member, imports)
    # A handle comes from an open store; it is not made by calling its class.
    return f"class {source.__name__}{_bases(source, imports)}:\n" + textwrap.indent("\n".join(lines), "    ")


def _binds_parameters(source: type) -> bool:
    """Whether a base's ParamSpec is given a list of types."""
    bases = getattr(source, "__orig_bases__", ())
    return any(isinstance(given, tuple | list) for base in bases for given in typing.get_args(base))


def _parameter(parameter: Any) -> str:
    """Return a parameter of a generic base; a list of them stands for a ParamSpec."""
    if isinstance(parameter, tuple | list):
        return f"[{', '.join(map(_parameter, parameter))}]"
    return str(parameter.__name__)


def _bases(source: type, imports: Imports) -> str:
    texts = []
    for base in getattr(source, "__orig_bases__", ()):
        if typing.get_origin(base) is typing.Generic:
            names = [parameter.__name__ for parameter in typing.get_args(base)]
            for name in ("Generic", *names):
                imports.need(name, source.__module__)
            texts.append(f"Generic[{', '.join(names)}]")
        elif base_type := typing.get_origin(base):
            # A class that both faces share, or a twin that is written above.
            imports.need(base_type.__name__, source.__module__)
            texts.append(f"{base_type.__name__}[{', '.join(map(_parameter, typing.get_args(base)))}]")
    return f"({', '.join(texts)})" if texts else ""


def _methods(method: Callable[..., Any], imports: Imports) -> list[str]:
    overloads = typing.get_overloads(method)
    if not overloads:
        return [_function(method, imports)]
    imports.need("overload", method.__module__)
    return ["@overload\n" + _function(one, imports) for one in overloads]


def _function(function: Callable[..., Any], imports: Imports) -> str:
    signature = inspect.signature(function)
    module = function.__module__
    parameters = [
        parameter.replace(annotation=_annotation(parameter.annotation, module, imports), default=_default(parameter))
        for parameter in signature.parameters.values()
    ]
    returned = _annotation(signature.return_annotation, module, imports)
    if returned.startswith("Coroutine[") and function.__name__ != "__call__":
        # Only a job's own function stays what it is.
        returned = _Verbatim(returned.removeprefix("Coroutine[Any, Any, ")[:-1])
    text = str(signature.replace(parameters=parameters, return_annotation=returned))
    name = FACES.get(function.__name__, function.__name__)
    return f"def {name}{text}: ..."


class _Verbatim(str):
    """Text that a signature prints as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _default(parameter: inspect.Parameter) -> Any:
    given = parameter.default
    return given if given is parameter.empty or isinstance(given, _PLAIN) else _Verbatim("...")


def _annotation(annotation: Any, module: str, imports: Imports) -> Any:
    if annotation is inspect.Signature.empty:
        return annotation
    assert isinstance(annotation, str), f"{module} needs 'from __future__ import annotations'"
    return _Verbatim(ast.unparse(_Blocking(imports, module).visit(ast.parse(annotation, mode="eval"))))


# --- instance attributes --------------------------------------------------------------------------


def _attributes(source: type, imports: Imports) -> Iterator[tuple[str, str]]:
    for owner in reversed(source.__mro__[:-1]):
        for name, annotation in _assigned(owner).items():
            if not name.startswith("_"):
                assert annotation, f"annotate {owner.__name__}.{name} in __init__: its type can't be told"
                yield name, str(_annotation(annotation, owner.__module__, imports))


def _assigned(owner: type) -> dict[str, str]:
    """Return the annotations of what ``__init__`` assigns to ``self``; an empty one where it can't be told."""
    if not owner.__module__.startswith("pelton.") or not inspect.isfunction(vars(owner).get("__init__")):
        return {}
    source = ast.parse(textwrap.dedent(inspect.getsource(vars(owner)["__init__"]))).body[0]
    assert isinstance(source, ast.FunctionDef)
    parameters = {arg.arg: arg.annotation for arg in [*source.args.args, *source.args.kwonlyargs]}
    found: dict[str, str] = {}
    for node in ast.walk(source):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            found[node.target.attr] = ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            found.setdefault(node.targets[0].attr, _inferred(node.value, parameters, owner))
    return found


def _inferred(value: ast.expr, parameters: dict[str, ast.expr | None], owner: type) -> str:
    """Return the annotation of a parameter, of a field of one, or of what is called with one."""
    if isinstance(value, ast.BoolOp):
        return _inferred(value.values[0], parameters, owner)
    if isinstance(value, ast.Name) and (annotation := parameters.get(value.id)) is not None:
        return ast.unparse(annotation)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.args:
        return _returned(value.func.id, value.args[0], parameters, owner)
    if isinstance(value, ast.Attribute):
        kind = vars(sys.modules[owner.__module__]).get(_inferred(value.value, parameters, owner))
        return _field(kind, value.attr) if isinstance(kind, type) else ""
    return ""


def _field(kind: type, name: str) -> str:
    hint = typing.get_type_hints(kind).get(name)
    return hint.__name__ if isinstance(hint, type) else _assigned(kind).get(name, "")


def _returned(name: str, argument: ast.expr, parameters: dict[str, ast.expr | None], owner: type) -> str:
    """Return what a call gives: of a type, of ``tuple(a sequence)``, of an annotated function."""
    if name == "tuple":
        return _inferred(argument, parameters, owner).replace("Sequence[", "tuple[").replace("]", ", ...]")
    if isinstance(getattr(builtins, name, None), type):
        return name
    function = vars(sys.modules[owner.__module__]).get(name)
    return str(inspect.signature(function).return_annotation) if function is not None else ""


if __name__ == "__main__":
    TARGET.write_text(stub())
