"""Reads typed values from a block of a configuration, and collects everything that is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from pelton.api import ConfigError
from pelton.server.settings.grammar import ConfigBlock, ConfigNode, ConfigPosition, duration_ns
from pelton.server.settings.options import IGNORED, REFUSED, Option

_NS: Final = 1_000_000_000
_DURATION: Final = "a duration such as 2s or 1m30s"
T = TypeVar("T")


OFF: Final[tuple[object, ...]] = (False, 0, "")
"""The values of a key that leave nats-server, too, as it is: they are no reason to refuse or warn."""


class SettingsFault(NamedTuple):
    """What is wrong at a place of the configuration."""

    at: ConfigPosition | None
    text: str

    def __str__(self) -> str:
        return self.text if self.at is None else f"{self.at}: {self.text}"


class SettingsError(ConfigError):
    """A configuration or command line that cannot be used; ``faults`` has all that is wrong with it."""

    def __init__(self, faults: Sequence[SettingsFault]) -> None:
        self.faults: tuple[SettingsFault, ...] = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


class SettingsFindings:
    """Errors and warnings, in the order in which they were found."""

    def __init__(self) -> None:
        self.errors: list[SettingsFault] = []
        self.warnings: list[SettingsFault] = []
        self.places: dict[str, ConfigPosition] = {}
        """Where keys stand that were read, by their paths, as the first of several spellings."""

    def error(self, at: ConfigPosition | None, text: str) -> None:
        """Add an error."""
        self.errors.append(SettingsFault(at, text))

    def warn(self, at: ConfigPosition | None, text: str) -> None:
        """Add a warning."""
        self.warnings.append(SettingsFault(at, text))

    def check(self) -> None:
        """Raise SettingsError if there are errors."""
        if self.errors:
            raise SettingsError(self.errors)


class ConfigSection:
    """A block that is read key by key; :meth:`finish` reports the keys that nobody asked for."""

    def __init__(self, block: ConfigBlock, at: ConfigPosition, findings: SettingsFindings, name: str = "") -> None:
        self._block = block
        self._left = {key.lower(): key for key in block.entries}
        self.at = at
        self.name = name
        self.findings = findings

    def take(self, *keys: str) -> ConfigNode | None:
        """Return the entry with one of the keys, the last one if there are several, and count it as read."""
        found = None
        for key in keys:
            if (written := self._left.pop(key, None)) is not None:
                found = self._block.entries[written]
                self.findings.places[f"{self.name}.{keys[0]}" if self.name else keys[0]] = found.at
        return found

    def fields(self, options: Mapping[str, Option]) -> dict[str, Any]:
        """Return the values of those options that the block has, by their fields."""
        values = {}
        for field, option in options.items():
            if option.keys and option.kind:
                value = getattr(self, option.kind)(*option.keys.split())
                if value is not None and (value != 0 or not option.zero_is_default):
                    values[field] = value
        return values

    def _read(self, keys: Sequence[str], expected: str, read: Callable[[ConfigNode], T | None]) -> T | None:
        """Return what one of the keys holds; None if there is none, or if it is wrong, which is an error."""
        node = self.take(*keys)
        if node is None:
            return None
        try:
            found = read(node)
        except ValueError as error:
            self.findings.error(node.at, f"{keys[0]}: {error}")
            return None
        if found is None:
            self.findings.error(node.at, f"{keys[0]} must be {expected}, not {_kind_of(node)}")
        return found

    def text(self, *keys: str) -> str | None:
        """Return a text, None if there is none or it is wrong."""
        return self._read(keys, "a text", _text_of)

    def integer(self, *keys: str) -> int | None:
        """Return an integer or a size, such as ``1MB``."""
        return self._read(keys, "an integer or a size such as 64K or 1MB, without quotes", _integer_of)

    size = integer

    def flag(self, *keys: str) -> bool | None:
        """Return a boolean."""
        return self._read(keys, "true or false", lambda node: node.value if isinstance(node.value, bool) else None)

    def seconds(self, *keys: str) -> float | None:
        """Return the seconds of a duration; a number without a unit is seconds."""
        return self._read(keys, _DURATION, _seconds_of)

    def duration(self, *keys: str) -> float | None:
        """Return the seconds of a duration that has a unit. Without quotes, ``1m`` is a million."""
        return self._read(keys, _DURATION, _duration_of)

    def texts(self, *keys: str) -> tuple[str, ...] | None:
        """Return a list of texts; a single one may stand without brackets."""
        return self._read(keys, "a text, or a list of texts", _texts_of)

    def mapping(self, *keys: str) -> dict[str, str] | None:
        """Return a block of texts."""
        return self._read(keys, "a block of texts", _mapping_of)

    def section(self, *keys: str) -> ConfigSection | None:
        """Return a block."""
        name = keys[0]
        return self._read(
            keys,
            "a block in braces",
            lambda node: self.inside(node, name) if isinstance(node.value, ConfigBlock) else None,
        )

    def sections(self, *keys: str) -> list[ConfigSection] | None:
        """Return a list of blocks."""

        def read(node: ConfigNode) -> list[ConfigSection] | None:
            if isinstance(node.value, list) and all(isinstance(item.value, ConfigBlock) for item in node.value):
                return [self.inside(item, keys[0]) for item in node.value]
            return None

        return self._read(keys, "a list of blocks", read)

    def take_named(self) -> list[tuple[str, ConfigNode]]:
        """Return all entries that are left, by their names as written, and count them as read."""
        found = [(key, self._block.entries[key]) for key in self._left.values() if key not in self._block.used]
        self._left.clear()
        return found

    def inside(self, node: ConfigNode, name: str) -> ConfigSection:
        """Return the block that a node of this one holds."""
        assert isinstance(node.value, ConfigBlock)
        return ConfigSection(node.value, node.at, self.findings, f"{self.name}.{name}" if self.name else name)

    def finish(self, block: str) -> None:
        """Report what was not read: unknown keys and those that ``block`` refuses as errors, ignored ones as warnings.

        A key whose value is off asks for nothing, so it is no reason to refuse or warn.
        """
        refused, ignored = REFUSED.get(block, {}), IGNORED.get(block, {})
        for key, written in self._left.items():
            node = self._block.entries[written]
            if written in self._block.used:
                continue
            where = f" in {self.name}" if self.name else ""
            asks = isinstance(node.value, list | ConfigBlock) or node.value not in OFF
            if key not in refused and key not in ignored:
                self.findings.error(node.at, f"unknown key {written!r}{where}")
            elif asks and key in refused:
                self.findings.error(node.at, f"{written}{where} is not supported: {refused[key]}")
            elif asks:
                self.findings.warn(node.at, f"{written}{where} has no effect: {ignored[key]}")
        self._left.clear()


def _text_of(node: ConfigNode) -> str | None:
    return node.value if isinstance(node.value, str) else None


def _integer_of(node: ConfigNode) -> int | None:
    return node.value if isinstance(node.value, int) and not isinstance(node.value, bool) else None


def _seconds_of(node: ConfigNode) -> float | None:
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    return _duration_of(node)


def _duration_of(node: ConfigNode) -> float | None:
    return duration_ns(node.value) / _NS if isinstance(node.value, str) else None


def _texts_of(node: ConfigNode) -> tuple[str, ...] | None:
    items = [item.value for item in (node.value if isinstance(node.value, list) else [node])]
    return tuple(map(str, items)) if all(isinstance(item, str) for item in items) else None


def _mapping_of(node: ConfigNode) -> dict[str, str] | None:
    if not isinstance(node.value, ConfigBlock):
        return None
    items = {key: entry.value for key, entry in node.value.entries.items() if key not in node.value.used}
    is_right = all(isinstance(value, str) for value in items.values())
    return {key: str(value) for key, value in items.items()} if is_right else None


def _kind_of(node: ConfigNode) -> str:
    match node.value:
        case ConfigBlock():
            return "a block"
        case list():
            return "a list"
        case bool():
            return str(node.value).lower()
        case datetime():
            return "a time"
        case str():
            return f"the text {node.value!r}"
    return f"the number {node.value}"
