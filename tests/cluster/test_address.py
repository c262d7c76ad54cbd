"""Addresses of clusters."""

import pytest

import pelton
from pelton.cluster.settings import parse_address


@pytest.mark.parametrize(
    ("address", "servers"),
    [
        ("nats://a", ["nats://a:4222"]),
        ("nats://a:1,b:2", ["nats://a:1", "nats://b:2"]),
        ("nats://a:1, nats://b", ["nats://a:1", "nats://b:4222"]),
        ("tls://a/", ["tls://a:4222"]),
        ("nats://u:p@a,b", ["nats://u:p@a:4222", "nats://u:p@b:4222"]),
        ("nats://u:p@a,v:q@b", ["nats://u:p@a:4222", "nats://v:q@b:4222"]),
        ("nats://[::1]:5", ["nats://[::1]:5"]),
    ],
)
def test_every_server_is_named(address: str, servers: list[str]) -> None:
    assert list(parse_address(address).servers) == servers


def test_the_name_tells_no_secret() -> None:
    assert parse_address("nats://user:secret@a,b:5").name == "nats://a:4222,b:5"


@pytest.mark.parametrize("address", ["nats://", "nats://a:x", "nats://a/path", "nats://a,,b", "nats://u:secret@:4"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(pelton.ConfigError) as caught:
        parse_address(address)
    assert "secret" not in str(caught.value)


def test_other_schemes_are_refused() -> None:
    with pytest.raises(pelton.ConfigError, match="http:// is not supported"):
        pelton.open("http://a")
