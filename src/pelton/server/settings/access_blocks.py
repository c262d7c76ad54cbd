"""Reads who may connect and what they may do: users, permissions, and authorization blocks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pelton.server.nkey import role_of
from pelton.server.settings.config import (
    GLOBAL_ACCOUNT,
    AllowDeny,
    AuthorizationConfig,
    PermissionRules,
    ResponseRules,
    UserConfig,
)
from pelton.server.settings.grammar import ConfigBlock, ConfigNode
from pelton.server.settings.refused import IGNORED, OFF, REFUSED
from pelton.server.settings.section import ConfigSection, FieldRow
from pelton.subjects import fault_of

CONNECTION_TYPES: Final = frozenset(
    {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"}
)
_PERMISSIONS: Final = ("permissions", "permission", "authorization")
_DEFAULTS: Final = ("default_permissions", "default_permission", "permissions")

_USER_ROWS: Final = (
    FieldRow("name", ("user", "username"), "text"),
    FieldRow("password", ("pass", "password"), "text"),
    FieldRow("nkey", ("nkey",), "text"),
    FieldRow("connection_types", ("allowed_connection_types", "connection_types", "clients"), "texts"),
)
_AUTHORIZATION_ROWS: Final = (
    FieldRow("user", ("user", "username"), "text"),
    FieldRow("password", ("pass", "password"), "text"),
    FieldRow("token", ("token",), "text"),
    FieldRow("timeout", ("timeout",), "seconds"),
)
_RESPONSE_ROWS: Final = (
    FieldRow("max_msgs", ("max", "max_msgs", "max_messages", "max_responses"), "integer"),
    FieldRow("expires", ("expires", "expiration", "ttl"), "duration"),
)


def login_of(section: ConfigSection) -> AuthorizationConfig:
    """Return an authorization block with one user or a token alone; its timeout is 0 if it says none."""
    return _authorization(section, {"timeout": 0.0} | section.fields(_AUTHORIZATION_ROWS))


def authorization_of(section: ConfigSection) -> AuthorizationConfig:
    """Return an authorization block."""
    fields = section.fields(_AUTHORIZATION_ROWS)
    if (defaults := permissions_of(section, _DEFAULTS)) is not None:
        fields["default_permissions"] = defaults
    if (users := section.sections("users")) is not None:
        fields["users"] = tuple([user_of(user, GLOBAL_ACCOUNT, defaults) for user in users])
    return _authorization(section, fields)


def _authorization(section: ConfigSection, fields: dict[str, Any]) -> AuthorizationConfig:
    finish(section, "authorization")
    found = AuthorizationConfig(**fields)
    if found.users and (found.user or found.token):
        section.findings.error(section.at, "authorization has users, so it cannot have a user or token of its own")
    if found.user and found.token:
        section.findings.error(section.at, "authorization cannot have both a user and a token")
    if found.password and not found.user:
        section.findings.error(section.at, "authorization has a password but no user")
    return found


def user_of(section: ConfigSection, account: str, defaults: PermissionRules | None) -> UserConfig:
    """Return an entry of a list of users, with the default permissions if it has none."""
    fields = section.fields(_USER_ROWS)
    kinds = fields.get("connection_types")
    if kinds is not None:
        fields["connection_types"] = frozenset(kind.upper() for kind in kinds)
    fields["permissions"] = permissions_of(section, _PERMISSIONS) or defaults
    finish(section, "user")
    user = UserConfig(account=account, **fields)
    for unknown in sorted((user.connection_types or frozenset()) - CONNECTION_TYPES):
        section.findings.error(section.at, f"unknown connection type {unknown!r}")
    if bool(user.name) == bool(user.nkey):
        section.findings.error(section.at, "a user has either a name (user) or a public key (nkey)")
    if user.nkey and (user.password or role_of(user.nkey) != "user"):
        section.findings.error(section.at, "nkey must be the public key of a user, and replaces the password")
    return user


def permissions_of(section: ConfigSection, keys: Sequence[str]) -> PermissionRules | None:
    """Return the permissions under one of the keys, None if there are none."""
    inner = section.section(*keys)
    if inner is None:
        return None
    fields: dict[str, object] = {}
    for field, names in (
        ("publish", ("publish", "pub", "import")),
        ("subscribe", ("subscribe", "sub", "export")),
    ):
        node = inner.take(*names)
        if node is not None:
            fields[field] = _rules(inner, node, queues=field == "subscribe")
    node = inner.take("allow_responses", "publish_allow_responses")
    if node is not None:
        fields["allow_responses"] = _responses(inner, node)
    finish(inner, "permissions")
    rules = msgspec.convert(fields, PermissionRules)
    if rules.allow_responses is not None and rules.publish.allow is None:
        # A client that may answer has no other subjects than those it is given.
        return msgspec.structs.replace(rules, publish=AllowDeny(allow=(), deny=rules.publish.deny))
    return rules


def _rules(section: ConfigSection, node: ConfigNode, *, queues: bool) -> AllowDeny:
    """Return the rules of a subject, a list of subjects, or a block with ``allow`` and ``deny``."""
    if not isinstance(node.value, ConfigBlock):
        return AllowDeny(allow=_subjects(section, node, queues=queues))
    inner = section.inside(node, "rules")
    allow, deny = inner.take("allow"), inner.take("deny")
    finish(inner, "rules")
    return AllowDeny(
        allow=None if allow is None else _subjects(section, allow, queues=queues),
        deny=() if deny is None else _subjects(section, deny, queues=queues) or (),
    )


def _subjects(section: ConfigSection, node: ConfigNode, *, queues: bool) -> tuple[str, ...] | None:
    """Return subjects, checked; an empty list is no rule, as on the server."""
    subjects: list[str] = []
    for item in node.value if isinstance(node.value, list) else [node]:
        if not isinstance(item.value, str):
            section.findings.error(item.at, "permissions must be a subject, or a list of subjects")
            continue
        parts = item.value.split()
        faults = [fault_of(part, wildcards=True) for part in parts]
        if not parts or len(parts) > (2 if queues else 1) or any(faults):
            section.findings.error(item.at, f"{item.value!r} is no valid subject of a permission")
        subjects.append(" ".join(parts))
    return tuple(subjects) or None


def _responses(section: ConfigSection, node: ConfigNode) -> ResponseRules | None:
    if isinstance(node.value, bool):
        return ResponseRules() if node.value else None
    if not isinstance(node.value, ConfigBlock):
        section.findings.error(node.at, "allow_responses must be true, false, or a block with max and expires")
        return None
    inner = section.inside(node, "allow_responses")
    fields = inner.fields(_RESPONSE_ROWS)
    finish(inner, "allow_responses")
    default = ResponseRules()
    # Zero stands for the default.
    return ResponseRules(
        max_msgs=fields.get("max_msgs") or default.max_msgs, expires=fields.get("expires") or default.expires
    )


def finish(section: ConfigSection, name: str) -> None:
    """Report the keys of a section that were not read."""
    section.finish(REFUSED.get(name, {}), IGNORED.get(name, {}), OFF)
