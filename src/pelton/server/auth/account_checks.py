"""Whether what an account exports and imports is valid: if not, nobody is let in to it. Pure."""

from __future__ import annotations

from pelton.server.auth.claims import AccountClaims, ActivationClaims, ImportClaims
from pelton.server.auth.tokens import Token, TokenError, read_token
from pelton.subjects import clash_within, is_filter, is_subset


def activation_of(claims: ImportClaims, importer: str) -> Token[ActivationClaims]:
    """Return the JWT with which an account lets another one import something; its time may be over.

    Raises TokenError if it is not for this import.
    """
    token = read_token(claims.token, ActivationClaims)
    subject = claims.to if claims.type == "service" and claims.to else claims.subject
    if claims.account not in (token.iss, token.nats.issuer_account):
        raise TokenError("it is not of the account that is imported from")
    if token.sub != importer:
        raise TokenError("it is for another account")
    if token.nats.kind != claims.type or not is_subset(subject, token.nats.subject):
        raise TokenError("it is for another subject")
    return token


def check_account(account: Token[AccountClaims]) -> None:
    """Raise TokenError if an account contradicts itself: as on nats-server, it is then not served."""
    exports, imports, limits = account.nats.exports or (), account.nats.imports or (), account.nats.limits
    if 0 <= limits.exports < len(exports) or 0 <= limits.imports < len(imports):
        raise TokenError("it has more exports or imports than its limits allow")
    for each in imports:
        _check_import(each, account.sub)
    services = [each.to or each.local_subject or each.subject for each in imports if each.type == "service"]
    for subjects in (
        services,
        [each.subject for each in exports if each.type == "service"],
        [each.subject for each in exports if each.type == "stream"],
    ):
        if wrong := next((subject for subject in subjects if not is_filter(subject)), None):
            raise TokenError(f"{wrong!r} is no subject")
        if clash_within(subjects):
            raise TokenError(f"of the subjects {', '.join(sorted(subjects))} two overlap")


def _check_import(claims: ImportClaims, importer: str) -> None:
    subjects = [claims.subject, *filter(None, (claims.to, claims.local_subject))]
    if not claims.account or not all(map(is_filter, subjects)):
        raise TokenError(f"its import {claims.subject!r} has no account, or no subject")
    if claims.token:
        try:
            activation_of(claims, importer)
        except TokenError as error:
            raise TokenError(f"the activation of its import {claims.subject!r} is not valid: {error}") from None
