"""Secrets are accepted only where Spark redacts them."""

import re

import pytest

from pelton.api import ConfigError
from pelton.spark.options import address_options, store_options

# Spark's own default: options with these names are redacted.
REDACTED = re.compile("(?i)secret|password|token|access[.]?key")
SEED = "SU" + "A" * 56


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": "s.pelton", "key": "hush"}, "use secretKey or keyFile instead"),
        ({"path": "s.pelton", "KEY": "hush"}, "use secretKey or keyFile instead"),
        ({"servers": "nats://ann:hush@host"}, "the options user and password, or token"),
        ({"servers": "nats://host", "nkey": SEED}, "put it into a file"),
    ],
)
def test_secrets_that_would_be_shown_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as failed:
        store_options(options, ())
    assert "hush" not in str(failed.value)
    assert SEED not in str(failed.value)


def test_names_of_secrets_are_such_as_spark_knows() -> None:
    for name in ("secretKey", "password", "token"):
        assert REDACTED.search(name)


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("nats://a:4222,b", {"servers": "nats://a:4222,b"}),
        ("tls://ann:hush@a,b", {"servers": "tls://a,b", "user": "ann", "password": "hush"}),
        ("nats://hush@a", {"servers": "nats://a", "token": "hush"}),
        ("nats://ann:x@a,ann:x@b", {"servers": "nats://a,b", "user": "ann", "password": "x"}),
    ],
)
def test_a_login_in_an_address_becomes_options(address: str, place: dict[str, str]) -> None:
    assert address_options(address) == place
    store_options(place, ())


def test_servers_of_different_logins_cannot_be_said() -> None:
    with pytest.raises(ConfigError, match="one for all"):
        address_options("nats://ann:x@a,bob:y@b")
