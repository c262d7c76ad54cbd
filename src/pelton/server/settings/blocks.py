"""Reads typed values from blocks of a configuration, and with them the blocks of accounts and their users. Pure.

Everything that is wrong with a block is collected, not only the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from pelton.api import AccountLimits
from pelton.server.settings.grammar import ConfigBlock, ConfigNode, ConfigPosition, SettingsFindings, duration_ns
from pelton.server.settings.options import (
    GLOBAL_ACCOUNT,
    IGNORED,
    REFUSED,
    AccountConfig,
    AllowDeny,
    AuthorizationConfig,
    ConnectionLimits,
    ExchangeKind,
    ExportConfig,
    ImportConfig,
    Option,
    PermissionRules,
    ResponseRules,
    ResponseType,
    TraceConfig,
    UserConfig,
    options_of,
)
from pelton.subjects import fault_of, is_subject
from pelton.wire.protocol import role_of

_NS: Final = 1_000_000_000
_DURATION: Final = "a duration such as 2s or 1m30s"
T = TypeVar("T")

OFF: Final[tuple[object, ...]] = (False, 0, "")
"""The values of a key that leave nats-server, too, as it is: they are no reason to refuse or warn."""


class ConfigSection:
    """A block that is read key by key; :meth:`finish` reports the keys that nobody asked for."""

    def __init__(self, block: ConfigBlock, at: ConfigPosition, findings: SettingsFindings, name: str = "") -> None:
        self._block = block
        self._left = {key.lower(): key for key in block.entries}
        self.at = at
        self.name = name
        self.findings = findings

    def take(self, *keys: str) -> ConfigNode | None:
        """Return the entry with one of the keys, the last one if there are several, and count it as read."""
        found = None
        for key in keys:
            if (written := self._left.pop(key, None)) is not None:
                found = self._block.entries[written]
                self.findings.places[f"{self.name}.{keys[0]}" if self.name else keys[0]] = found.at
        return found

    def fields(self, options: Mapping[str, Option]) -> dict[str, Any]:
        """Return the values of those options that the block has, by their fields."""
        values = {}
        for field, option in options.items():
            if option.keys and option.kind:
                value = getattr(self, option.kind)(*option.keys.split())
                if value is not None and (value != 0 or not option.zero_is_default):
                    values[field] = value
        return values

    def _read(self, keys: Sequence[str], expected: str, read: Callable[[ConfigNode], T | None]) -> T | None:
        """Return what one of the keys holds; None if there is none, or if it is wrong, which is an error."""
        node = self.take(*keys)
        if node is None:
            return None
        try:
            found = read(node)
        except ValueError as error:
            self.findings.error(node.at, f"{keys[0]}: {error}")
            return None
        if found is None:
            self.findings.error(node.at, f"{keys[0]} must be {expected}, not {_value_kind(node)}")
        return found

    def text(self, *keys: str) -> str | None:
        """Return a text, None if there is none or it is wrong."""
        return self._read(keys, "a text", _text_of)

    def integer(self, *keys: str) -> int | None:
        """Return an integer or a size, such as ``1MB``."""
        return self._read(keys, "an integer or a size such as 64K or 1MB, without quotes", _integer_of)

    size = integer

    def flag(self, *keys: str) -> bool | None:
        return self._read(keys, "true or false", lambda node: node.value if isinstance(node.value, bool) else None)

    def seconds(self, *keys: str) -> float | None:
        """Return the seconds of a duration; a number without a unit is seconds."""
        return self._read(keys, _DURATION, _seconds_of)

    def duration(self, *keys: str) -> float | None:
        """Return the seconds of a duration that has a unit. Without quotes, ``1m`` is a million."""
        return self._read(keys, _DURATION, _duration_of)

    def texts(self, *keys: str) -> tuple[str, ...] | None:
        """Return a list of texts; a single one may stand without brackets."""
        return self._read(keys, "a text, or a list of texts", _texts_of)

    def mapping(self, *keys: str) -> dict[str, str] | None:
        return self._read(keys, "a block of texts", _mapping_of)

    def section(self, *keys: str) -> ConfigSection | None:
        name = keys[0]
        return self._read(
            keys,
            "a block in braces",
            lambda node: self.inside(node, name) if isinstance(node.value, ConfigBlock) else None,
        )

    def sections(self, *keys: str) -> list[ConfigSection] | None:
        def read(node: ConfigNode) -> list[ConfigSection] | None:
            if isinstance(node.value, list) and all(isinstance(item.value, ConfigBlock) for item in node.value):
                return [self.inside(item, keys[0]) for item in node.value]
            return None

        return self._read(keys, "a list of blocks", read)

    def take_named(self) -> list[tuple[str, ConfigNode]]:
        """Return all entries that are left, by their names as written, and count them as read."""
        found = [(key, self._block.entries[key]) for key in self._left.values() if key not in self._block.used]
        self._left.clear()
        return found

    def inside(self, node: ConfigNode, name: str) -> ConfigSection:
        assert isinstance(node.value, ConfigBlock)
        return ConfigSection(node.value, node.at, self.findings, f"{self.name}.{name}" if self.name else name)

    def finish(self, block: str) -> None:
        """Report what was not read: unknown keys and those that ``block`` refuses as errors, ignored ones as warnings.

        A key whose value is off asks for nothing, so it is no reason to refuse or warn.
        """
        refused, ignored = REFUSED.get(block, {}), IGNORED.get(block, {})
        for key, written in self._left.items():
            node = self._block.entries[written]
            if written in self._block.used:
                continue
            where = f" in {self.name}" if self.name else ""
            asks = isinstance(node.value, list | ConfigBlock) or node.value not in OFF
            if key not in refused and key not in ignored:
                self.findings.error(node.at, f"unknown key {written!r}{where}")
            elif asks and key in refused:
                self.findings.error(node.at, f"{written}{where} is not supported: {refused[key]}")
            elif asks:
                self.findings.warn(node.at, f"{written}{where} has no effect: {ignored[key]}")
        self._left.clear()


def _text_of(node: ConfigNode) -> str | None:
    return node.value if isinstance(node.value, str) else None


def _integer_of(node: ConfigNode) -> int | None:
    return node.value if isinstance(node.value, int) and not isinstance(node.value, bool) else None


def _seconds_of(node: ConfigNode) -> float | None:
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    return _duration_of(node)


def _duration_of(node: ConfigNode) -> float | None:
    return duration_ns(node.value) / _NS if isinstance(node.value, str) else None


def _texts_of(node: ConfigNode) -> tuple[str, ...] | None:
    items = [item.value for item in (node.value if isinstance(node.value, list) else [node])]
    return tuple(map(str, items)) if all(isinstance(item, str) for item in items) else None


def _mapping_of(node: ConfigNode) -> dict[str, str] | None:
    if not isinstance(node.value, ConfigBlock):
        return None
    items = {key: entry.value for key, entry in node.value.entries.items() if key not in node.value.used}
    is_right = all(isinstance(value, str) for value in items.values())
    return {key: str(value) for key, value in items.items()} if is_right else None


def _value_kind(node: ConfigNode) -> str:
    match node.value:
        case ConfigBlock():
            return "a block"
        case list():
            return "a list"
        case bool():
            return str(node.value).lower()
        case datetime():
            return "a time"
        case str():
            return f"the text {node.value!r}"
    return f"the number {node.value}"


# Blocks that are read into an AccountLimits, which belongs to the public API.
STREAM_LIMITS: Final[Mapping[str, Option]] = {
    "max_memory": Option("max_memory max_mem mem memory", kind="integer"),
    "max_storage": Option("max_store max_file max_disk store disk", kind="integer"),
    "max_streams": Option("max_streams streams", kind="integer"),
    "max_consumers": Option("max_consumers consumers", kind="integer"),
    "max_ack_pending": Option("max_ack_pending", kind="integer"),
    "max_bytes_required": Option("max_bytes_required max_stream_bytes", kind="flag"),
    "memory_max_stream_bytes": Option("mem_max_stream_bytes memory_max_stream_bytes", kind="integer"),
    "storage_max_stream_bytes": Option("disk_max_stream_bytes store_max_stream_bytes", kind="integer"),
}
JETSTREAM_LIMITS: Final[Mapping[str, Option]] = {
    "max_ack_pending": Option("max_ack_pending", kind="integer"),
    "max_request_batch": Option("max_request_batch", kind="integer"),
    "duplicate_window": Option("duplicate_window", kind="seconds"),
}

CONNECTION_TYPES: Final = frozenset(
    {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"}
)
_PERMISSIONS: Final = ("permissions", "permission", "authorization")
_DEFAULTS: Final = ("default_permissions", "default_permission", "permissions")


def login_of(section: ConfigSection) -> AuthorizationConfig:
    """Return an authorization block with one user or a token alone; its timeout is 0 if it says none."""
    return _authorization(section, {"timeout": 0.0} | section.fields(options_of(AuthorizationConfig)))


def authorization_of(section: ConfigSection) -> AuthorizationConfig:
    fields = section.fields(options_of(AuthorizationConfig))
    if (defaults := permissions_of(section, _DEFAULTS)) is not None:
        fields["default_permissions"] = defaults
    if (users := section.sections("users")) is not None:
        fields["users"] = tuple([user_of(user, GLOBAL_ACCOUNT, defaults) for user in users])
    return _authorization(section, fields)


def _authorization(section: ConfigSection, fields: dict[str, Any]) -> AuthorizationConfig:
    section.finish("authorization")
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
    fields = section.fields(options_of(UserConfig))
    kinds = fields.get("connection_types")
    if kinds is not None:
        fields["connection_types"] = frozenset(kind.upper() for kind in kinds)
    fields["permissions"] = permissions_of(section, _PERMISSIONS) or defaults
    section.finish("user")
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
    for field, names in (("publish", ("publish", "pub", "import")), ("subscribe", ("subscribe", "sub", "export"))):
        node = inner.take(*names)
        if node is not None:
            fields[field] = _rules(inner, node, queues=field == "subscribe")
    node = inner.take("allow_responses", "publish_allow_responses")
    if node is not None:
        fields["allow_responses"] = _responses(inner, node)
    inner.finish("permissions")
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
    inner.finish("rules")
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
    fields = inner.fields(options_of(ResponseRules))
    inner.finish("allow_responses")
    default = ResponseRules()
    # Zero stands for the default.
    return ResponseRules(
        max_msgs=fields.get("max_msgs") or default.max_msgs, expires=fields.get("expires") or default.expires
    )


# --- reads accounts: their users, limits, exports and imports. Pure

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
    for name, entry in section.take_named():
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
        fields["limits"] = ConnectionLimits(**limits.fields(options_of(ConnectionLimits)))
        limits.finish("account.limits")
    if (node := section.take("jetstream")) is not None:
        fields["jetstream"] = _streams(section, node)
    if (node := section.take("msg_trace", "trace_dest")) is not None:
        fields["tracing"] = _tracing(section, node)
    fields["exports"] = tuple(filter(None, map(_export, section.sections("exports") or ())))
    fields["imports"] = tuple(filter(None, map(_import, section.sections("imports") or ())))
    section.finish("account")
    return AccountConfig(**fields), users


def _streams(section: ConfigSection, node: ConfigNode) -> AccountLimits | None:
    """Return what an account may store; None if it has no streams."""
    if not isinstance(node.value, ConfigBlock):
        return AccountLimits() if _is_enabled(section, node, "a block of limits") else None
    inner = section.inside(node, "jetstream")
    found = AccountLimits(**inner.fields(STREAM_LIMITS))
    inner.finish("account.jetstream")
    return found


def _is_enabled(section: ConfigSection, node: ConfigNode, block: str) -> bool:
    """Whether JetStream is turned on by a word; one that is unknown is an error, which ``block`` names."""
    word = str(node.value).lower()
    if isinstance(node.value, bool) or word in ("enabled", "enable", "disabled", "disable"):
        return word in ("true", "enabled", "enable")
    section.findings.error(node.at, f"jetstream must be enabled, disabled, or {block}")
    return False


def _tracing(section: ConfigSection, node: ConfigNode) -> TraceConfig:
    """Return where an account's traces are told: a subject, or a block that also has how many in a hundred."""
    if isinstance(node.value, ConfigBlock):
        inner = section.inside(node, "msg_trace")
        destination, share = inner.text("dest") or "", inner.take("sampling")
        inner.finish("account.msg_trace")
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


def _check_subject(section: ConfigSection, subject: str) -> str:
    if fault := fault_of(subject, wildcards=True):
        section.findings.error(section.at, f"{subject!r} is no valid subject: {fault}")
    return subject


def _export(section: ConfigSection) -> ExportConfig | None:
    found = _kind_of(section)
    fields = section.fields(options_of(ExportConfig))
    section.finish("export")
    if found is None:
        return None
    kind, node = found
    if "allow_trace" in fields and kind != "service":
        section.findings.error(section.at, "allow_trace is for exports of services, and for imports of streams")
    if not isinstance(node.value, str):
        section.findings.error(node.at, f"the {kind} of an export must be a subject")
        return None
    if (accounts := fields.pop("accounts", None)) is not None:
        fields["accounts"] = frozenset(accounts)
    if (response := fields.get("response_type")) is not None:
        if kind == "stream" or response.lower() not in _RESPONSES:
            section.findings.error(section.at, "the response of a service is single, stream or chunked")
        fields["response_type"] = _RESPONSES.get(response.lower(), "Singleton")
    return ExportConfig(kind=kind, subject=_check_subject(section, node.value), **fields)


def _import(section: ConfigSection) -> ImportConfig | None:
    found = _kind_of(section)
    fields, prefix = section.fields(options_of(ImportConfig)), section.text("prefix")
    section.finish("import")
    if found is None:
        return None
    kind, node = found
    if not isinstance(node.value, ConfigBlock):
        section.findings.error(node.at, f"the {kind} of an import must be a block with account and subject")
        return None
    inner = section.inside(node, kind)
    account, subject = inner.text("account") or "", inner.text("subject") or ""
    inner.finish("source")
    if not account or not subject:
        section.findings.error(node.at, f"the {kind} of an import needs an account and a subject")
        return None
    if "allow_trace" in fields and kind != "stream":
        section.findings.error(section.at, "allow_trace is for exports of services, and for imports of streams")
    if fields.get("to") and prefix:
        section.findings.error(section.at, "an import has either to or prefix")
    if prefix:
        if kind == "service":
            section.findings.error(section.at, "prefix is for imported streams; use to for services")
        fields["to"] = f"{prefix.removesuffix('.')}.{subject}"
    return ImportConfig(kind=kind, account=account, subject=_check_subject(section, subject), **fields)


# --- the outermost block, and those for JetStream, TLS and WebSocket
