"""Reads the NATS configuration format: blocks, arrays, variables, includes, comments, and JSON. Pure.

**Scalars of a NATS configuration: what a bare word means, sizes, escapes, and durations. Pure.** A bare word is an
integer (``4222``), a size (``64K``: 1000, ``64KB``, ``64Ki``, ``64KiB``: 1024), a float, a boolean (``true yes on``,
``false no off``), a time (``2016-05-04T18:53:41Z``), or else a string. A word that begins like a number and is none,
such as ``1.5MB``, is refused, as nats-server refuses it.

**Reads the NATS configuration format: blocks, arrays, variables, includes, comments, and JSON. Pure.** One recursive
descent over the text. A block keeps an entry for each key, the last one if a key is repeated, and notes which of them
variables have used, because a key that only defines a variable is no setting. Files and the environment come in from
outside.

The language, as nats-server 2.15 reads it::

    port: 4222                      # also "port = 4222" and "port 4222"
    jetstream { store_dir: '/data' max_file_store: 10GB }    <- refused: entries end with a line, ',' or ';'
    PASSWORD: $SECRET               // a variable: an earlier key of this or an outer block, or the environment
    include "users.conf"            # below the folder of this file

More is accepted than by nats-server in few places: an integer directly before ``]``, JSON's escapes and exponents.
"""

from __future__ import annotations

import bisect
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple, NoReturn, TypeVar

from pelton.api import ConfigError

Scalar = str | int | float | bool | datetime

_INT64: Final = range(-(1 << 63), 1 << 63)
_BOOLEANS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_SIZE: Final = re.compile(r"(-?[0-9]+)([kmgtpe])(i?b?)", re.IGNORECASE | re.ASCII)
_INTEGER: Final = re.compile(r"-?[0-9]+", re.ASCII)
# An exponent is JSON's; nats-server has none.
_FLOAT: Final = re.compile(r"-?[0-9]+(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-][0-9]+)", re.ASCII)
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)
_ADDRESS: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9.]*(:[0-9]*)?", re.ASCII)
_NUMERIC: Final = re.compile(r"-|\.|[0-9]+[.-]", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
# The first five are nats-server's; the others are JSON's.
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f"}

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_UNIT_PART: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def scalar_of(word: str) -> Scalar:
    """Return the value of a bare word. Raises ValueError with the reason, for example for ``1.5MB``."""
    if (known := _BOOLEANS.get(word.lower())) is not None:
        return known
    if _INTEGER.fullmatch(word):
        return _in_range(int(word), word) if len(word) < 32 else _in_range(1 << 63, word)
    if size := _SIZE.fullmatch(word):
        base = 1024 if size[3] else 1000
        return _in_range(int(size[1][:32]) * base ** _POWERS[size[2].lower()], word)
    if _FLOAT.fullmatch(word):
        return float(word)
    if _TIME.fullmatch(word):
        return datetime.strptime(word, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    if _NUMERIC.match(word) and not _ADDRESS.fullmatch(word):
        raise ValueError(f"{word!r} begins like a number and is none: write it in quotes")
    return word


def unescape(text: str) -> str:
    r"""Return a text with its escapes (``\xXX \uXXXX \t \n \r \" \\ \/ \b \f``) replaced. Raises ValueError."""
    if "\\" not in text:
        return text
    # Escapes with \x are bytes of UTF-8, so the pieces are joined as bytes.
    pieces, end = bytearray(), 0
    for found in _ESCAPE.finditer(text):
        pieces += text[end : found.start()].encode("utf-8", "surrogatepass")
        pieces += _replacement(found)
        end = found.end()
    pieces += text[end:].encode("utf-8", "surrogatepass")
    return _join_pieces(pieces)


def _replacement(found: re.Match[str]) -> bytes:
    if found[1]:
        return bytes([int(found[1], 16)])
    if found[2]:
        return chr(int(found[2], 16)).encode("utf-8", "surrogatepass")
    if (char := _ESCAPED.get(found[3])) is None:
        raise ValueError(f"invalid escape '\\{found[3]}': write \\xXX, \\t, \\n, \\r, \\\" or \\\\")
    return char.encode()


def _join_pieces(pieces: bytearray) -> str:
    try:
        # A pair of \u surrogates is one character, as in JSON.
        return pieces.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("the escapes are not UTF-8") from None


def duration_ns(text: str) -> int:
    """Return the nanoseconds of a duration such as ``1h30m``, ``1.5s`` or ``250ms``. Raises ValueError."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    parts = list(_UNIT_PART.finditer(rest))
    if not parts or "".join(part[0] for part in parts) != rest or len(rest) > 100:
        raise ValueError(f"{text!r} is no duration: write for example 250ms, 1.5s or 1h30m")
    total = sum(_part_ns(part[1], _UNITS[part[2]]) for part in parts)
    return sign * _in_range(total, text)


def _part_ns(number: str, unit: int) -> int:
    whole, _, fraction = number.partition(".")
    exact = int(whole or "0") * unit
    return exact + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)


def _in_range(value: int, word: str) -> int:
    if value not in _INT64:
        raise ValueError(f"{word!r} is out of range: integers have 64 bits")
    return value


_DEEPEST: Final = 64
_LINE_ENDS: Final = "\n\r"
_BLANKS: Final = " \t"
_ENDS_OF_WORD: Final = frozenset("\n\r \t,;]}")
_SEPARATORS: Final = ":="
_QUOTES: Final = frozenset("'\"")
_BCRYPT: Final = "2a$"

_T = TypeVar("_T")
ReadFile = Callable[[str], str]


class ConfigPosition(NamedTuple):
    """A place in a configuration; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class ConfigSyntaxError(ConfigError):
    """The text at ``position`` does not follow the configuration format."""

    position: ConfigPosition
    reason: str

    def __init__(self, position: ConfigPosition, reason: str) -> None:
        self.position, self.reason = position, reason
        super().__init__(f"{position}: {reason}")


@dataclass(slots=True)
class ConfigBlock:
    """The entries of a block by their keys, as written."""

    entries: dict[str, ConfigNode] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ConfigNode:
    """A value and where it is: for an entry of a block, the position of its key."""

    value: Scalar | list[ConfigNode] | ConfigBlock
    at: ConfigPosition


ConfigValue = Scalar | list[ConfigNode] | ConfigBlock
Plain = Scalar | list["Plain"] | dict[str, "Plain"]


def plain(node: ConfigNode | ConfigBlock) -> Plain:
    """Return a value without positions, with the keys that define variables."""
    value = node.value if isinstance(node, ConfigNode) else node
    if isinstance(value, ConfigBlock):
        return {key: plain(entry) for key, entry in value.entries.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def parse_config(
    text: str, *, file: str = "config", read: ReadFile | None = None, environment: Mapping[str, str] | None = None
) -> ConfigBlock:
    """Return the entries of a configuration.

    ``file`` is its path, for errors and includes; ``read`` returns the text of an included file; ``environment``
    holds the values of variables that no key defines. Raises ConfigSyntaxError.
    """
    return _Parser(text, _Source(file, read or _no_includes, environment or {})).document()


def _no_includes(path: str) -> str:
    raise OSError(f"{path!r} cannot be included here")


class _Source(NamedTuple):
    file: str
    read: ReadFile
    environment: Mapping[str, str]
    # The files, or the variables of the environment, that are being read: none may lead to itself.
    outer: tuple[str, ...] = ()

    def inner(self, file: str) -> _Source:
        return self._replace(file=file, outer=(*self.outer, self.file))


class _Parser:
    """Reads one text; ``_at`` is the next character."""

    def __init__(self, text: str, source: _Source) -> None:
        self._text = text
        self._source = source
        self._at = 0
        self._blocks: list[ConfigBlock] = []
        self._depth = 0
        self._lines = [index + 1 for index, char in enumerate(text) if char == "\n"]

    def document(self) -> ConfigBlock:
        """Return the outermost block, whose braces may be missing."""
        if "\0" in self._text:
            self._fail("a configuration holds no NUL", self._text.index("\0"))
        block = ConfigBlock()
        self._blocks.append(block)
        braced = self._skip_blank() == "{"
        self._at += braced
        while char := self._skip_blank():
            if char == "}" and (braced or not self._text[self._at + 1 : self._at + 2].strip()):
                self._at, braced = self._at + 1, False
                continue
            self._entry(block)
            self._end_of_entry("}")
            if self._peek() == "}":
                # The server ignores one brace too many at the end of an entry; so do we. On a line of its own, a name
                # begins with it.
                self._at, braced = self._at + 1, False
        if braced:
            self._fail("the block that began with '{' does not end: '}' is missing")
        return block

    # --- entries

    def _block(self) -> ConfigBlock:
        block = ConfigBlock()
        self._blocks.append(block)
        self._enter()
        while (char := self._skip_blank()) != "}":
            if not char:
                self._fail("the block does not end: '}' is missing")
            self._entry(block)
            self._end_of_entry("}")
        self._at += 1
        self._depth -= 1
        self._blocks.pop()
        return block

    def _entry(self, block: ConfigBlock) -> None:
        at = self._at
        quoted = self._peek() in _QUOTES
        key = self._read_quoted() if quoted else self._bare_key()
        if not quoted and key.lower() == "include" and self._peek().isspace():
            self._include(block)
            return
        while self._peek().isspace():
            self._at += 1
        if not self._peek():
            self._fail(f"the key {key!r} has no value", at)
        self._at += self._peek() in _SEPARATORS
        value = self._value()
        # A key that is repeated counts where it stands last.
        block.entries.pop(key, None)
        block.entries[key] = ConfigNode(value, self._position(at))

    def _bare_key(self) -> str:
        begin = self._at
        while (char := self._peek()) and not char.isspace() and char not in _SEPARATORS:
            self._at += 1
        if self._at == begin:
            self._fail(f"a key is expected, not {char!r}")
        key = self._text[begin : self._at]
        if key[0] in ",;":
            self._fail(f"a key is expected, not {key[0]!r}", begin)
        return key

    def _end_of_entry(self, closing: str) -> None:
        """Step over what ends an entry; a closing brace stays."""
        self._skip(_BLANKS)
        char = self._peek()
        if char in {",", ";"}:
            self._at += 1
        elif char and char not in _LINE_ENDS and char != closing and not self._comment():
            self._fail(f"a new line, ',' or ';' is expected after a value, not {char!r}")

    def _include(self, block: ConfigBlock) -> None:
        self._skip(_BLANKS)
        at = self._at
        name = self._read_quoted() if self._peek() in _QUOTES else self._word()
        source = self._source
        # Even a name that begins with a slash is below the folder of the file, as on the server.
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source.file), name.lstrip("/")))
        if not name or path in (source.file, *source.outer):
            self._fail(f"the file {path!r} includes itself" if name else "include needs the name of a file", at)
        try:
            text = source.read(path)
        except (OSError, UnicodeDecodeError) as error:
            self._fail(f"cannot include {path!r}: {error}", at)
        if len(source.outer) >= _DEEPEST:
            self._fail("includes are nested too deeply", at)
        block.entries.update(_Parser(text, source.inner(path)).document().entries)

    # --- values

    def _value(self) -> ConfigValue:
        self._skip(_BLANKS)
        char, at = self._peek(), self._at
        if not char or char in _LINE_ENDS:
            self._fail("a value is expected on the same line as its key")
        if char in "[{(":
            self._at += 1
            return self._array() if char == "[" else self._block() if char == "{" else self._raw_block()
        if char in _QUOTES:
            return self._read_quoted()
        word = self._word()
        # In what begins like a number nothing is an escape.
        if "\\" in word and word[0] not in "-.0123456789":
            return self._check_value(unescape, word, at)
        if word.startswith("$"):
            return self._variable(word[1:], at)
        return self._check_value(scalar_of, word, at)

    def _array(self) -> list[ConfigNode]:
        items: list[ConfigNode] = []
        self._enter()
        while (char := self._skip_blank()) != "]":
            if not char:
                self._fail("the array does not end: ']' is missing")
            if char == ",":
                self._fail("a value is expected, not ','")
            at = self._position(self._at)
            items.append(ConfigNode(self._value(), at))
            self._end_of_item()
        self._at += 1
        self._depth -= 1
        return items

    def _end_of_item(self) -> None:
        self._skip(_BLANKS)
        char = self._peek()
        if char == ",":
            self._at += 1
        elif char and char not in _LINE_ENDS and char != "]" and not self._comment():
            self._fail(f"',' or ']' is expected after a value of an array, not {char!r}")

    def _raw_block(self) -> str:
        """Return the text up to a line that is only ``)``."""
        begin = self._at
        end = self._text.find("\n)", begin)
        while end >= 0 and self._text[end + 2 : end + 3].strip(_LINE_ENDS):
            end = self._text.find("\n)", end + 1)
        if end < 0:
            self._fail("the text that began with '(' does not end: a line with only ')' is missing", begin)
        self._at = end + 2
        return self._text[begin : end + 1]

    def _read_quoted(self) -> str:
        quote, begin = self._peek(), self._at
        self._at += 1
        while (char := self._peek()) != quote:
            if not char:
                self._fail(f"the string does not end: {quote} is missing", begin)
            self._at += 2 if char == "\\" and quote == '"' else 1
        self._at += 1
        inside = self._text[begin + 1 : self._at - 1]
        return self._check_value(unescape, inside, begin) if quote == '"' else inside

    def _word(self) -> str:
        begin = self._at
        while (char := self._peek()) and char not in _ENDS_OF_WORD:
            self._at += 1
        if self._at == begin:
            self._fail(f"a value is expected, not {char!r}" if char else "a value is expected")
        word = self._text[begin : self._at]
        if "'" in word:
            # To nats-server it ends the word, and is no part of it: of a password that would be another one.
            self._fail("a word without quotes holds no apostrophe: write it in double quotes", begin + word.index("'"))
        return word

    def _variable(self, name: str, at: int) -> ConfigValue:
        if name.startswith(_BCRYPT):
            return f"${name}"
        for block in reversed(self._blocks):
            if name in block.entries:
                block.used.add(name)
                return block.entries[name].value
        if (text := self._source.environment.get(name)) is None:
            self._fail(f"the variable ${name} is neither a key before this line nor in the environment", at)
        if not text.strip():
            return ""
        inside = f"${name}"
        if inside in self._source.outer or inside == self._source.file:
            self._fail(f"the variable ${name} refers to itself", at)
        source = self._source.inner(inside)._replace(read=_no_includes)
        return _Parser(f"{name}={text}", source).document().entries[name].value

    def _check_value(self, read: Callable[[str], _T], text: str, at: int) -> _T:
        try:
            return read(text)
        except ValueError as error:
            self._fail(str(error), at)

    # --- characters

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, chars: str) -> None:
        while (char := self._peek()) and char in chars:
            self._at += 1

    def _skip_blank(self) -> str:
        """Skip white space and comments; return the next character, '' at the end."""
        while char := self._peek():
            if char.isspace():
                self._at += 1
            elif not self._comment():
                return char
        return ""

    def _comment(self) -> bool:
        """Skip a comment, if there is one here, up to the end of its line."""
        if not self._text.startswith(("#", "//"), self._at):
            return False
        while (char := self._peek()) and char not in _LINE_ENDS:
            self._at += 1
        return True

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail("blocks and arrays are nested too deeply")

    def _position(self, index: int) -> ConfigPosition:
        line = bisect.bisect_right(self._lines, index)
        return ConfigPosition(self._source.file, line + 1, index - (self._lines[line - 1] if line else 0) + 1)

    def _fail(self, reason: str, index: int | None = None) -> NoReturn:
        raise ConfigSyntaxError(self._position(self._at if index is None else index), reason)


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
        self.errors.append(SettingsFault(at, text))

    def warn(self, at: ConfigPosition | None, text: str) -> None:
        self.warnings.append(SettingsFault(at, text))

    def check(self) -> None:
        if self.errors:
            raise SettingsError(self.errors)
