"""Certificates become the context of a server."""

from __future__ import annotations

import os
import ssl
from typing import Any, Final

import msgspec

from pelton.api import ConfigError

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsDoor(msgspec.Struct, frozen=True, kw_only=True):
    """How clients come in by TLS: ``first`` is True if the handshake comes before the greeting, False if after, or the
    seconds to wait for it. ``verify``: clients show a certificate.
    """

    context: Any
    """An `ssl.SSLContext`, as `tls_context` makes one."""
    first: bool | float = False
    """True if the handshake comes before the greeting, False if after; a number: seconds to wait for it."""
    timeout: float = 2.0
    """How many seconds the handshake may take."""
    verify: bool = False
    """Whether clients must show a certificate."""


def tls_context(
    cert_file: str, key_file: str, *, ca_file: str = "", verify: bool = False, min_version: str = "1.2"
) -> ssl.SSLContext:
    """Return the context of a server that shows the certificate in ``cert_file``, with the key in ``key_file``.

    With ``verify``, clients must show a certificate, signed by an authority in ``ca_file`` (PEM), or by one that the
    system trusts if that is empty. ``min_version``, of TLS, is "1.2" or "1.3". Raises ConfigError if a file cannot be
    used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[min_version]
    for name, path in (("certificate", cert_file), ("key", key_file), *((("authority", ca_file),) if ca_file else ())):
        if not os.path.isfile(path):
            raise ConfigError(f"tls: the file of the {name}, {path!r}, does not exist")
    try:
        context.load_cert_chain(cert_file, key_file)
        if ca_file:
            context.load_verify_locations(ca_file)
        elif verify:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: {cert_file!r}, {key_file!r} or {ca_file!r} cannot be used: {error}") from None
    if verify:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
