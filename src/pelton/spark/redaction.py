"""Secrets in options, and Spark's redaction of them. Pure.

Spark shows a query's options in its plans, so in its UI and its event log, and redacts only values whose names match
``spark.redaction.regex`` (secret, password, token). So secrets are accepted under such names or in files, and are
refused elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pelton.api import ConfigError

_SEED_LENGTH: Final = 58


def refuse_unredacted(given: Mapping[str, str]) -> None:
    """Raise ConfigError for a secret that Spark would not redact."""
    options = {name.lower(): value for name, value in given.items()}
    if "key" in options:
        raise ConfigError("option key would be shown by Spark in its plans: use secretKey or keyFile instead")
    if "@" in options.get("servers", ""):
        raise ConfigError(
            "option servers holds a login, which Spark would show in its plans: give it as the options user and "
            "password, or token"
        )
    nkey = options.get("nkey", "")
    if len(nkey) == _SEED_LENGTH and nkey.startswith("S"):
        raise ConfigError(
            "option nkey holds a seed, which Spark would show in its plans: put it into a file on every executor, and "
            "give that file's path"
        )


def address_options(address: str) -> dict[str, str]:
    """Return a cluster's address as options, with the login in options of its own.

    Raises ConfigError if the servers have different logins.
    """
    scheme, _, hosts = address.partition("://")
    logins = {host.rpartition("@")[0] for host in hosts.split(",")} - {""}
    if not logins:
        return {"servers": address}
    if len(logins) > 1:
        raise ConfigError("the servers of the address have different logins: Spark takes one for all")
    user, colon, password = logins.pop().partition(":")
    login = {"user": user, "password": password} if colon else {"token": user}
    plain = ",".join(host.rpartition("@")[2] for host in hosts.split(","))
    return {"servers": f"{scheme}://{plain}", **login}
