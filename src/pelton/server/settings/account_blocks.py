"""Reads accounts and who may connect: users, permissions, authorization, limits, exports and imports. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pelton.api import AccountLimits
from pelton.server.nkey import role_of
from pelton.server.settings.config import (
    GLOBAL_ACCOUNT,
    AccountConfig,
    AllowDeny,
    AuthorizationConfig,
    ConnectionLimits,
    ExchangeKind,
    ExportConfig,
    ImportConfig,
    PermissionRules,
    ResponseRules,
    ResponseType,
    TraceConfig,
    UserConfig,
)
from pelton.server.settings.grammar import ConfigBlock, ConfigNode
from pelton.server.settings.refused import IGNORED, OFF, REFUSED
from pelton.server.settings.section import ConfigSection, FieldRow
from pelton.subjects import fault_of, is_subject

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


# --- reads accounts: their users, limits, exports and imports. Pure

_LIMIT_ROWS: Final = (
    FieldRow("max_connections", ("max_connections", "max_conn"), "integer"),
    FieldRow("max_subscriptions", ("max_subscriptions", "max_subs"), "integer"),
    FieldRow("max_payload", ("max_payload", "max_pay"), "integer"),
)
_STREAM_ROWS: Final = (
    FieldRow("max_memory", ("max_memory", "max_mem", "mem", "memory"), "integer"),
    FieldRow("max_storage", ("max_store", "max_file", "max_disk", "store", "disk"), "integer"),
    FieldRow("max_streams", ("max_streams", "streams"), "integer"),
    FieldRow("max_consumers", ("max_consumers", "consumers"), "integer"),
    FieldRow("max_ack_pending", ("max_ack_pending",), "integer"),
    FieldRow("max_bytes_required", ("max_bytes_required", "max_stream_bytes"), "flag"),
    FieldRow("memory_max_stream_bytes", ("mem_max_stream_bytes", "memory_max_stream_bytes"), "integer"),
    FieldRow("storage_max_stream_bytes", ("disk_max_stream_bytes", "store_max_stream_bytes"), "integer"),
)
_EXPORT_ROWS: Final = (
    FieldRow("accounts", ("accounts",), "texts"),
    FieldRow(
        "response_threshold", ("threshold", "response_threshold", "response_time", "response_max_time"), "seconds"
    ),
    FieldRow("account_token_position", ("account_token_position",), "integer"),
)
_RESPONSES: Final[dict[str, ResponseType]] = {
    "single": "Singleton",
    "singleton": "Singleton",
    "stream": "Stream",
    "chunk": "Chunked",
    "chunked": "Chunked",
}


def accounts_of(section: ConfigSection, node: ConfigNode) -> tuple[tuple[AccountConfig, ...], tuple[UserConfig, ...]]:
    """Return the accounts of an accounts block, or of a list of names, and the users of all of them."""
    accounts, users = [], list[UserConfig]()
    if isinstance(node.value, list):
        names = {str(item.value): ConfigNode(ConfigBlock(), item.at) for item in node.value}
        node = ConfigNode(ConfigBlock(names), node.at)
    if not isinstance(node.value, ConfigBlock):
        section.findings.error(node.at, "accounts must be a block in braces, or a list of names")
        return (), ()
    section = section.inside(node, "accounts")
    for name, entry in section.named():
        if not isinstance(entry.value, ConfigBlock):
            section.findings.error(entry.at, f"the account {name!r} must be a block in braces")
            continue
        account, its_users = _account(name, section.inside(entry, name))
        accounts.append(account)
        users += its_users
    return tuple(accounts), tuple(users)


def _account(name: str, section: ConfigSection) -> tuple[AccountConfig, list[UserConfig]]:
    fields: dict[str, Any] = {"name": name, "nkey": section.text("nkey") or ""}
    if not name or not name.isprintable() or name == GLOBAL_ACCOUNT or set(name) & {"/", "\\"}:
        # Accounts are kept in files that bear their names.
        section.findings.error(section.at, f"{name!r} cannot be the name of an account")
    defaults = permissions_of(section, ("default_permissions",))
    fields["default_permissions"] = defaults
    users = [user_of(user, name, defaults) for user in section.sections("users") or ()]
    if (limits := section.section("limits")) is not None:
        fields["limits"] = ConnectionLimits(**limits.fields(_LIMIT_ROWS))
        finish(limits, "account.limits")
    if (node := section.take("jetstream")) is not None:
        fields["jetstream"] = _streams(section, node)
    if (node := section.take("msg_trace", "trace_dest")) is not None:
        fields["tracing"] = _tracing(section, node)
    fields["exports"] = tuple(filter(None, map(_export, section.sections("exports") or ())))
    fields["imports"] = tuple(filter(None, map(_import, section.sections("imports") or ())))
    finish(section, "account")
    return AccountConfig(**fields), users


def _streams(section: ConfigSection, node: ConfigNode) -> AccountLimits | None:
    """Return what an account may store; None if it has no streams."""
    match node.value:
        case bool():
            return AccountLimits() if node.value else None
        case str() if node.value.lower() in ("enabled", "enable"):
            return AccountLimits()
        case str() if node.value.lower() in ("disabled", "disable"):
            return None
        case ConfigBlock():
            inner = section.inside(node, "jetstream")
            found = AccountLimits(**inner.fields(_STREAM_ROWS))
            finish(inner, "account.jetstream")
            return found
    section.findings.error(node.at, "jetstream must be enabled, disabled, or a block of limits")
    return None


def _tracing(section: ConfigSection, node: ConfigNode) -> TraceConfig:
    """Return where an account's traces are told: a subject, or a block that also has how many in a hundred."""
    if isinstance(node.value, ConfigBlock):
        inner = section.inside(node, "msg_trace")
        destination, share = inner.text("dest") or "", inner.take("sampling")
        finish(inner, "account.msg_trace")
        text = "100" if share is None else str(share.value).removesuffix("%")
    else:
        destination, text = str(node.value), "100"
    if not is_subject(destination):
        section.findings.error(
            node.at, f"the destination of msg_trace must be a subject without wildcards, not {destination!r}"
        )
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        section.findings.error(node.at, "the sampling of msg_trace is from 1 to 100, of a hundred")
        return TraceConfig()
    return TraceConfig(destination=destination, sampling=int(text))


def _kind_of(section: ConfigSection) -> tuple[ExchangeKind, ConfigNode] | None:
    stream, service = section.take("stream"), section.take("service")
    if stream is not None and service is None:
        return "stream", stream
    if service is not None and stream is None:
        return "service", service
    section.findings.error(section.at, "an export or import has either a stream or a service")
    return None


def _checked(section: ConfigSection, subject: str) -> str:
    if fault := fault_of(subject, wildcards=True):
        section.findings.error(section.at, f"{subject!r} is no valid subject: {fault}")
    return subject


def _export(section: ConfigSection) -> ExportConfig | None:
    found = _kind_of(section)
    fields = section.fields(_EXPORT_ROWS)
    response, allow_trace = section.text("response_type", "response"), section.flag("allow_trace")
    finish(section, "export")
    if found is None:
        return None
    kind, node = found
    if allow_trace is not None and kind != "service":
        section.findings.error(section.at, "allow_trace is for exports of services, and for imports of streams")
    if not isinstance(node.value, str):
        section.findings.error(node.at, f"the {kind} of an export must be a subject")
        return None
    if (accounts := fields.pop("accounts", None)) is not None:
        fields["accounts"] = frozenset(accounts)
    if response is not None:
        if kind == "stream" or response.lower() not in _RESPONSES:
            section.findings.error(section.at, "the response of a service is single, stream or chunked")
        fields["response_type"] = _RESPONSES.get(response.lower(), "Singleton")
    subject = _checked(section, node.value)
    return ExportConfig(kind=kind, subject=subject, allow_trace=bool(allow_trace), **fields)


def _import(section: ConfigSection) -> ImportConfig | None:
    found = _kind_of(section)
    to, prefix, share = section.text("to"), section.text("prefix"), section.flag("share")
    allow_trace = section.flag("allow_trace")
    finish(section, "import")
    if found is None:
        return None
    kind, node = found
    if not isinstance(node.value, ConfigBlock):
        section.findings.error(node.at, f"the {kind} of an import must be a block with account and subject")
        return None
    inner = section.inside(node, kind)
    account, subject = inner.text("account") or "", inner.text("subject") or ""
    finish(inner, "source")
    if not account or not subject:
        section.findings.error(node.at, f"the {kind} of an import needs an account and a subject")
        return None
    if allow_trace is not None and kind != "stream":
        section.findings.error(section.at, "allow_trace is for exports of services, and for imports of streams")
    if to and prefix:
        section.findings.error(section.at, "an import has either to or prefix")
    if prefix:
        if kind == "service":
            section.findings.error(section.at, "prefix is for imported streams; use to for services")
        to = f"{prefix.removesuffix('.')}.{subject}"
    return ImportConfig(
        kind=kind,
        account=account,
        subject=_checked(section, subject),
        to=to or "",
        share=bool(share),
        allow_trace=bool(allow_trace),
    )
