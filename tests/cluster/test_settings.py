"""Options that are refused before a server is contacted."""

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.cluster import read_context, settings_of
from tests.cluster.people import Company, Person


def test_defaults() -> None:
    settings = settings_of("nats://a,b:5")
    assert (settings.name, settings.api_prefix, settings.inbox_prefix) == ("nats://a:4222,b:5", "$JS.API", "_INBOX")
    assert (settings.patience, settings.message_ids, settings.insists_on_tls) == (30.0, True, False)


def test_no_secret_is_shown() -> None:
    settings = settings_of("nats://a", user="u", password="hush")
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("options", "prefix"),
    [({"domain": "hub"}, "$JS.hub.API"), ({"api_prefix": "JS.x."}, "JS.x"), ({}, "$JS.API")],
)
def test_where_the_api_is(options: dict[str, Any], prefix: str) -> None:
    assert settings_of("nats://a", **options).api_prefix == prefix


def test_tls_is_insisted_on_where_it_is_asked_for() -> None:
    assert settings_of("tls://a").insists_on_tls
    assert settings_of("nats://a", tls=ssl.create_default_context()).insists_on_tls


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"user": "a"}, "belong together"),
        ({"token": "t", "user": "a", "password": "b"}, "user and password and token each give a login"),
        ({"domain": "a", "api_prefix": "b"}, "keep one of them"),
        ({"domain": "a.b"}, "one token"),
        ({"api_prefix": "$JS.*"}, "not a subject"),
        ({"inbox_prefix": "a b"}, "not a subject"),
        ({"api_prefix": "a" * 129}, "more than 128 bytes"),
        ({"domain": "d" * 128}, "more than 128 bytes"),
        ({"inbox_prefix": "é" * 65}, "more than 128 bytes"),
        ({"patience": -1}, "patience"),
        ({"tls_key": "k"}, "without tls_cert"),
        ({"tls_ca": "/nowhere/ca.pem"}, "'/nowhere/ca.pem' cannot be read"),
        ({"tls": ssl.create_default_context(), "tls_ca": "ca"}, "whole SSLContext"),
        ({"credentials": "/nowhere/a.creds"}, "'/nowhere/a.creds' cannot be read"),
        ({"nkey": "/nowhere/a.nk"}, "'/nowhere/a.nk' cannot be read"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(pelton.ConfigError, match=words):
        settings_of("nats://a", **options)


def test_a_login_in_the_address_and_another_one(tmp_path: Path) -> None:
    with pytest.raises(pelton.ConfigError, match="the address and token"):
        settings_of("nats://u:p@a", token="t")


def test_files_that_hold_something_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    for option, words in (("credentials", "no user JWT"), ("nkey", "not a seed"), ("tls_ca", "cannot be used")):
        with pytest.raises(pelton.ConfigError, match=words):
            settings_of("nats://a", **{option: file})
    with pytest.raises(pelton.ConfigError, match="not of a user"):
        settings_of("nats://a", nkey=Person(b"A").seed)


def test_a_seed_is_taken_as_text_or_file(tmp_path: Path) -> None:
    seed = Person(b"U").seed
    (tmp_path / "nk").write_text(seed)
    assert settings_of("nats://a", nkey=seed) == settings_of("nats://a", nkey=tmp_path / "nk")


# --- contexts


def _context(folder: Path, **fields: object) -> str:
    file = folder / "context.json"
    file.write_text(json.dumps(fields))
    return str(file)


def test_a_context_says_what_the_options_say(tmp_path: Path) -> None:
    (tmp_path / "a.creds").write_text(Company().credentials())
    creds = str(tmp_path / "a.creds")
    path = _context(tmp_path, url="nats://a,b", creds=creds, jetstream_domain="hub", inbox_prefix="_X", token="")
    address, options = read_context(path, {})
    assert (address, options) == ("nats://a,b", {"credentials": creds, "domain": "hub", "inbox_prefix": "_X"})
    assert settings_of(address, **options).api_prefix == "$JS.hub.API"


def test_what_is_given_outweighs_the_context(tmp_path: Path) -> None:
    path = _context(tmp_path, user="a", password="b", jetstream_domain="hub", ca="/ca")
    assert read_context(path, {"token": "t", "api_prefix": "p"})[1] == {
        "token": "t",
        "api_prefix": "p",
        "tls_ca": "/ca",
    }
    assert read_context(path, {})[0] == "nats://localhost:4222"


def test_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert read_context(_context(tmp_path, nkey="~/a.nk"), {})[1] == {"nkey": "/home/me/a.nk"}


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not JSON"), ("[]", "not a JSON object"), ('{"nsc": "nsc://x"}', "uses nsc"), (None, "be read")],
)
def test_contexts_that_cannot_be_used(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "context.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(pelton.ConfigError, match=words):
        pelton.open(f"context:{file}")


# --- options of the other kind


@pytest.mark.parametrize(
    ("address", "options", "words"),
    [
        ("nats://a", {"sync": "commit"}, "sync mean something to a file alone"),
        ("nats://u:secret@a", {"busy_timeout": 1}, "busy_timeout"),
        ("memory:", {"token": "t"}, "token mean something to a cluster alone"),
        ("file", {"credentials": "x", "tls_ca": "y"}, "credentials, tls_ca"),
        ("nats://a", {"credential": "x"}, "did you mean 'credentials'"),
        ("memory:", {"snyc": "off"}, "did you mean 'sync'"),
    ],
)
def test_options_of_the_other_kind_are_refused(address: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(pelton.ConfigError, match=words) as caught:
        pelton.open(address, **options)
    assert "secret" not in str(caught.value)
