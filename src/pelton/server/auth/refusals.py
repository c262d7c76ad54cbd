"""Why a client is refused, in the words that NATS clients know. Pure data."""

from __future__ import annotations

from typing import Final

AUTHORIZATION_VIOLATION: Final = "Authorization Violation"
AUTHENTICATION_TIMEOUT: Final = "Authentication Timeout"
USER_EXPIRED: Final = "User Authentication Expired"
USER_REVOKED: Final = "User Authentication Revoked"
ACCOUNT_EXPIRED: Final = "Account Authentication Expired"
MAX_CONNECTIONS: Final = "maximum connections exceeded"
MAX_ACCOUNT_CONNECTIONS: Final = "maximum account active connections exceeded"
MAX_SUBSCRIPTIONS: Final = "maximum subscriptions exceeded"


def publish_violation(subject: str) -> str:
    """Return the text for a subject that may not be published to."""
    return f'Permissions Violation for Publish to "{subject}"'


def subscription_violation(subject: str, queue: str = "") -> str:
    """Return the text for a subject that may not be subscribed to, as a member of a queue group or alone."""
    using = f' using queue "{queue}"' if queue else ""
    return f'Permissions Violation for Subscription to "{subject}"{using}'
