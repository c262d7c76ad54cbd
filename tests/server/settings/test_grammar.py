"""The configuration format: what is written means what nats-server takes it for."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.server.settings.grammar import ConfigSyntaxError, duration_ns, parse_config, plain
from tests.server.settings.oracle import digest_of, verdict

# Each is accepted by nats-server, as the same content.
ACCEPTED = [
    "port: 4222",
    "port 4222",
    "port=4222",
    "port\n4222",
    "{port: 4222}",
    '{"port": 4222}',
    "port: 4222}",
    "port: 4222 }// more",
    "port: 4222\n}\n",
    "{port: 4222\n}// more",
    "port: 4222, host: x",
    "port: 4222; host: x",
    "{port: 4222}\nhost: x",
    "{port: 4222,\n}",
    "jetstream: {store_dir: /tmp/x}",
    "jetstream {store_dir=/tmp/x, max_mem: 1G,}",
    "server_tags: [a\nb\n#c\n d //x\n]",
    "server_tags: [a,b,]",
    "server_tags: [\"a\",'b', c ]",
    "server_tags:[a,b]",
    "server_tags: a",
    "server_name: 12abc",
    "server_name: 12\\x41",
    "server_name: 4222:80",
    "server_name: 12kbx",
    "server_name: 0x10",
    "server_name: 1_000",
    "server_name: 1.2.3.4",
    "server_name: 1.2.3.4:80",
    "server_name: 1.2.3",
    "server_name: 1é",
    "server_name: 3#b",
    "server_name: x#y",
    "server_name: x//y",
    "server_name:a #b",
    "server_name:'a'#b",
    "server_name:'a'//b",
    "server_name: a=b",
    "server_name: a[b",
    "server_name: a{b",
    "server_name: a$b",
    'server_name: "$x"',
    "server_name: '$x'",
    "server_name: 'a\nb'",
    'server_name: "a\nb"',
    'server_name: "a\\x41\\t\\""',
    "server_name: a\\tb",
    "server_name: (\nab)\nc\n)\n",
    "server_name: (x\n)\nport: 1",
    "server_name: a\rport: 3",
    "server_name: a\r\nport: 3",
    "server_name: a\u00a0b",
    "server_name\u00a0: b",
    "\u00a0server_name:b",
    'server_name: "true"',
    "server_name: trueish",
    "server_name: $2a$11$abcdefghij.klm",
    "max_payload: 1MB",
    "max_payload: 1Mb",
    "max_payload: 1mib",
    "max_payload: 1mi",
    "max_payload: 1m",
    "max_payload: 007",
    "max_payload: -1K",
    "max_pending: 1G",
    "port: -1",
    "port: 1\nport: 2",
    "Port: 1\nport: 2",
    "P: 4222\nport: $P",
    "V: [a,b]\nserver_tags: $V",
    "authorization {V: x\n user: $V\n password: y}",
    "V: {user: a, password: b}\nauthorization: $V",
    "# hi\n//there\nport: 4222 # x\n",
    "'port': 4222",
    "debug: on",
    "debug: YES",
    "debug: tRuE",
    "listen: 127.0.0.1:4222",
    'listen: "[::1]:4222"',
    "server_metadata: {a: <b>, c: 'x&y'}",
    "authorization {\nuser: a\npassword: b}",
    "authorization {user: a; password: b}",
    "authorization {user: a\n\n\n//c\n#d\npassword: b #x\n}",
    "authorization\n{user=a,password=b}",
    "include inner/first.conf\nmax_subs: $V",
    "include 'inner/first.conf'",
    'authorization { include "inner/user.conf" }',
]

REFUSED = [
    "server_name: 12.\\x41",
    "server_name: -\\x41",
    "port:\n4222",
    "port",
    ": 4222",
    "{port: 4222",
    "port: 4222 host: x",
    "port: 4222 /x",
    "server_tags: [a,b,,c]",
    "server_tags: [a b]",
    "server_tags: [,]",
    "server_tags: [a;b]",
    "server_tags: [a\n\n,b]",
    "server_tags:[a]]",
    "server_tags: [a",
    "server_name: -abc",
    "server_name: -1abc",
    "server_name: .5",
    "server_name: 1.a",
    "server_name: 1.2a",
    "server_name: 1..2",
    "server_name: 1-2",
    "server_name: 2016-05-04",
    "server_name: a]b",
    "server_name: a}b",
    'server_name: "a"b',
    "server_name: 'a\\'b'",
    "server_name: 'ab",
    "server_name: a'b",
    "server_name: :'a'",
    "server_tags: [a'b]",
    'server_name: "ab',
    'server_name: "a\\q"',
    'server_name: "a\\x4"',
    "server_name: a\\qb",
    "server_name: (abc)",
    "server_name: (abc",
    "server_name: a\x00b",
    "ping_interval: 1.5s",
    "max_payload: 1.5MB",
    "max_payload: 99999999999999999999",
    "port: $P",
    "port: $P\nP: 4222",
    "P = $P\nport: $P",
    "server_name: $",
    "{port: 4222} x",
    "authorization {user: a password: b}",
    "authorization:\n{user=a,password=b}",
    "authorization {user: a",
    "include missing.conf",
    "include\ninner/first.conf",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "first.conf").write_text("include second.conf\nV: 3\nW: $V")
    (tmp_path / "inner" / "second.conf").write_text("port: 4001")
    (tmp_path / "inner" / "user.conf").write_text("user: a\npassword: b")
    return tmp_path


@pytest.mark.parametrize("text", [text for text in ACCEPTED if "first.conf'" not in text])
def test_what_the_server_accepts_has_the_same_content(text: str, folder: Path) -> None:
    read = parse_config(text, file=str(folder / "server.conf"), read=lambda path: Path(path).read_text())
    said = verdict(folder, text)
    if "first.conf" in text:
        # A variable that an included file defines for itself is an unknown key to the server.
        assert said.is_grammar_kept
    else:
        assert said.digest == digest_of(read), said.text


@pytest.mark.parametrize("text", REFUSED)
def test_what_the_server_refuses_is_refused(text: str, folder: Path) -> None:
    said = verdict(folder, text)
    assert not said.digest
    assert not said.is_grammar_kept, said.text
    with pytest.raises(ConfigSyntaxError):
        parse_config(text, file=str(folder / "server.conf"), read=lambda path: Path(path).read_text())


def test_variables_come_from_the_environment(folder: Path) -> None:
    environment = {"PORT": "4001", "USER": "{user: a, password: 'x y'}", "NAME": "", "OUTER": "$PORT"}
    text = "port: $PORT\nauthorization: $USER\nmax_payload: $OUTER\nserver_name: $NAME"
    read = parse_config(text, environment=environment)
    user = {"user": "a", "password": "x y"}
    assert plain(read) == {"port": 4001, "authorization": user, "max_payload": 4001, "server_name": ""}
    assert verdict(folder, text, environment).digest == digest_of(read)


@pytest.mark.parametrize("environment", [{"A": "$A"}, {"A": "$B", "B": "$A"}])
def test_a_variable_that_refers_to_itself_is_refused(environment: dict[str, str], folder: Path) -> None:
    assert not verdict(folder, "port: $A", environment).is_grammar_kept
    with pytest.raises(ConfigSyntaxError, match="refers to itself"):
        parse_config("port: $A", environment=environment)


def test_a_file_that_includes_itself_is_refused() -> None:
    with pytest.raises(ConfigSyntaxError, match="includes itself"):
        parse_config("include a.conf", file="a.conf", read=lambda path: "include a.conf")
    texts = {"b.conf": "include a.conf", "a.conf": "include b.conf"}
    with pytest.raises(ConfigSyntaxError, match="includes itself"):
        parse_config(texts["a.conf"], file="a.conf", read=texts.__getitem__)


def test_an_included_file_is_found_below_the_folder_of_its_includer() -> None:
    texts = {"/etc/nats/users/all.conf": "include 'one.conf'", "/etc/nats/users/one.conf": "user: a"}
    read = parse_config("include users/all.conf", file="/etc/nats/server.conf", read=texts.__getitem__)
    assert plain(read) == {"user": "a"}


def test_included_files_need_a_reader() -> None:
    with pytest.raises(ConfigSyntaxError, match="cannot include"):
        parse_config("include a.conf")


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("a: 1\n  b: [1\n  ?", 3, 4), ("a: 'b", 1, 4), ("a: 1 b", 1, 6), ("a: {\nb: 1..2}", 2, 4), ("\n\n: 1", 3, 1)],
)
def test_errors_name_the_place(text: str, line: int, column: int) -> None:
    with pytest.raises(ConfigSyntaxError) as caught:
        parse_config(text, file="x.conf")
    assert caught.value.position == ("x.conf", line, column)
    assert str(caught.value).startswith(f"x.conf:{line}:{column}: ")


def test_values_have_their_places() -> None:
    read = parse_config("a: 1\n  b: [1,\n  2]", file="x.conf")
    assert str(read.entries["b"].at) == "x.conf:2:3"
    items = read.entries["b"].value
    assert isinstance(items, list)
    assert [str(item.at) for item in items] == ["x.conf:2:7", "x.conf:3:3"]


def test_a_time_is_a_time() -> None:
    assert plain(parse_config("a: 2016-05-04T18:53:41Z")) == {"a": datetime(2016, 5, 4, 18, 53, 41, tzinfo=UTC)}
    with pytest.raises(ConfigSyntaxError):
        parse_config("a: 2016-15-04T18:53:41Z")


def test_deep_nesting_is_refused() -> None:
    for opening in ("[", "{a:", "{a "):
        with pytest.raises(ConfigSyntaxError, match="too deeply"):
            parse_config("a: " + opening * 10_000)


_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_SCALARS = st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    _SCALARS | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcXYZ_.", min_size=1), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abcXYZ_. -", min_size=1), _JSON, max_size=5), st.booleans(), st.sampled_from([None, 2]))
def test_json_is_read_as_json(value: dict[str, object], ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert plain(parse_config(text)) == value


@given(st.text(st.sampled_from("ab1.-:=,;[]{}()'\"\\$#/ \n\r\tx0kKmM\0é"), max_size=60) | st.text(max_size=40))
def test_no_text_crashes_the_parser(text: str) -> None:
    # Anything else that it raises fails the test.
    with contextlib.suppress(ConfigSyntaxError):
        assert isinstance(plain(parse_config(text, environment={"a": "1", "b": "$a", "x": "[$b, $x"})), dict)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1ns", 1),
        ("1us", 1_000),
        ("1µs", 1_000),
        ("250ms", 250_000_000),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1h30m", 5_400_000_000_000),
        ("-2m", -120_000_000_000),
        ("+2m", 120_000_000_000),
        ("0.000000001s", 1),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert duration_ns(text) == expected


@pytest.mark.parametrize(
    "text", ["", "1", "x", "1d", "1s x", "s", "1 s", "--1s", "1ss", ".s", "9" * 30 + "h", "1s" * 99]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|range"):
        duration_ns(text)


def test_on_a_line_of_its_own_a_name_begins_with_a_brace() -> None:
    # The server refuses the whole as an unknown field of that name.
    assert [*parse_config("port: 4222\n}// more").entries] == ["port", "}//"]
