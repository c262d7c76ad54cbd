"""From a client's TLS certificate to the user it stands for. Pure.

A certificate names its user by an e-mail address, a host name or a URI, each an alternative name of its subject, or by
the distinguished name of its subject, in this order. TLS has verified the certificate before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

# One attribute; several joined by + are one part of a distinguished name.
_Part = frozenset[tuple[str, str]]

_SHORT: Final = {
    "commonname": "CN",
    "organizationname": "O",
    "organizationalunitname": "OU",
    "countryname": "C",
    "localityname": "L",
    "stateorprovincename": "ST",
    "streetaddress": "STREET",
    "postalcode": "POSTALCODE",
    "serialnumber": "SERIALNUMBER",
    "domaincomponent": "DC",
    "userid": "UID",
    "emailaddress": "EMAILADDRESS",
    "e": "EMAILADDRESS",
}
_ATTRIBUTE: Final = re.compile(r"\s*([A-Za-z0-9.-]+)\s*=\s*((?:[^,+;\\]|\\.)*)([,+;]|\Z)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\([0-9a-fA-F]{2})|\\(.)", re.DOTALL)


class TlsPeer(msgspec.Struct, frozen=True, kw_only=True):
    """What a certificate says of its owner. ``subject`` has the parts of the distinguished name, the last one first."""

    emails: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    subject: tuple[_Part, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The alternative names, in the order in which they are tried."""
        return self.emails + self.hosts + self.uris


def peer_of(certificate: Mapping[str, Any] | None) -> TlsPeer | None:
    """Return what ``SSLSocket.getpeercert()`` says; None without a verified certificate."""
    if not certificate:
        return None
    names = [(str(kind), str(value)) for kind, value in certificate.get("subjectAltName", ())]
    parts = [frozenset((_type(kind), str(value)) for kind, value in part) for part in certificate.get("subject", ())]
    return TlsPeer(
        emails=tuple([value for kind, value in names if kind == "email"]),
        hosts=tuple([value for kind, value in names if kind == "DNS"]),
        uris=tuple([value for kind, value in names if kind == "URI"]),
        subject=tuple(reversed(parts)),
    )


def user_of_peer(peer: TlsPeer, users: Iterable[str]) -> str | None:
    """Return the name of the user that a certificate stands for, None if it is nobody's."""
    known = list(users)
    for name in peer.names:
        if name in known:
            return name
    if not peer.subject:
        return None
    wanted = Counter(peer.subject)
    # The order of the parts does not matter, but one that is as it stands is preferred.
    named = [(name, parts) for name in known if "=" in name and (parts := parts_of(name)) is not None]
    return next(
        (name for name, parts in named if parts == peer.subject),
        next((name for name, parts in named if Counter(parts) == wanted), None),
    )


def parts_of(name: str) -> tuple[_Part, ...] | None:
    """Return the parts of a distinguished name such as ``CN=ann,OU=garage``; None if it is none."""
    parts: list[_Part] = []
    part: set[tuple[str, str]] = set()
    at = 0
    while found := _ATTRIBUTE.match(name, at):
        part.add((_type(found[1]), _ESCAPED.sub(_unescaped, found[2].strip())))
        at = found.end()
        if found[3] == "+":
            continue
        parts.append(frozenset(part))
        part = set()
        if not found[3]:
            return tuple(parts)
    return None


def _type(kind: str) -> str:
    return _SHORT.get(kind.lower(), kind.upper())


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else found[2]
