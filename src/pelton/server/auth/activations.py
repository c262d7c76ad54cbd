"""Activations: JWTs with which an account lets others import what it exports. Pure."""

from __future__ import annotations

from pelton.server.auth.claims import AccountClaims, ActivationClaims, ImportClaims
from pelton.server.auth.tokens import Token, TokenError, read_token
from pelton.subjects import is_subset


def activation_of(claims: ImportClaims, importer: str) -> Token[ActivationClaims]:
    """Return an import's activation, whose time may be over. Raises TokenError if it is not for this import."""
    token = read_token(claims.token, ActivationClaims)
    subject = claims.to if claims.type == "service" and claims.to else claims.subject
    if claims.account not in (token.iss, token.nats.issuer_account):
        raise TokenError("it is not of the account that is imported from")
    if token.sub != importer:
        raise TokenError("it is for another account")
    if token.nats.kind != claims.type or not is_subset(subject, token.nats.subject):
        raise TokenError("it is for another subject")
    return token


def check_activations(account: Token[AccountClaims]) -> None:
    """Raise TokenError if an import has an activation that is not for it: the account is then not served."""
    for each in account.nats.imports or ():
        if each.token:
            try:
                activation_of(each, account.sub)
            except TokenError as error:
                raise TokenError(f"the activation of its import {each.subject!r} is not valid: {error}") from None
