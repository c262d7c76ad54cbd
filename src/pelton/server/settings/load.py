"""From a configuration's text to settings, checked as a whole. Pure: files and environment come in from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from pelton.server.settings.config import (
    RANDOM_PORT,
    SYSTEM_ACCOUNT,
    ExportConfig,
    ImportConfig,
    ServerConfig,
)
from pelton.server.settings.flags import CommandLine, with_flags
from pelton.server.settings.grammar import ConfigPosition, ReadFile, parse_config
from pelton.server.settings.section import ConfigSection, SettingsFault, SettingsFindings
from pelton.server.settings.server_blocks import server_of
from pelton.subjects import is_subset

_PORTS: Final = range(RANDOM_PORT, 65_536)


class LoadedConfig(NamedTuple):
    """Settings, what has no effect in them, and where their keys stand."""

    settings: ServerConfig
    warnings: tuple[SettingsFault, ...] = ()
    places: Mapping[str, ConfigPosition] = {}


def config_of(
    text: str, *, file: str = "config", read: ReadFile, environment: Mapping[str, str] | None = None
) -> LoadedConfig:
    """Return the settings of a configuration; ``read`` returns the text of another file.

    Raises ConfigSyntaxError, or SettingsError with everything that is wrong.
    """
    findings = SettingsFindings()
    settings = _read(text, ConfigPosition(file, 1, 1), read, environment or {}, findings)
    return _checked(settings, findings)


def config_of_command(
    line: CommandLine, *, read: ReadFile, environment: Mapping[str, str] | None = None
) -> LoadedConfig:
    """Return the settings of a command line and of the configuration file that it names.

    Raises ConfigSyntaxError, SettingsError, and OSError if the file cannot be read.
    """
    settings, findings = ServerConfig(), SettingsFindings()
    findings.warnings += line.warnings
    if line.config:
        settings = _read(read(line.config), ConfigPosition(line.config, 1, 1), read, environment or {}, findings)
    settings = with_flags(settings, line)
    if not line.stores:
        settings = _with_store_dir(settings, environment or {})
    return _checked(settings, findings)


def _with_store_dir(settings: ServerConfig, environment: Mapping[str, str]) -> ServerConfig:
    """Return the settings with the user's own folder for streams, if there are to be streams and no folder is given."""
    jetstream, home = settings.jetstream, environment.get("HOME", "")
    states = environment.get("XDG_STATE_HOME") or (home and f"{home}/.local/state")
    if jetstream is None or jetstream.store_dir or not states:
        return settings
    return replace(settings, jetstream=replace(jetstream, store_dir=f"{states}/pelton/jetstream"))


def _read(
    text: str, at: ConfigPosition, read: ReadFile, environment: Mapping[str, str], findings: SettingsFindings
) -> ServerConfig:
    block = parse_config(text, file=at.file, read=read, environment=environment)
    return server_of(ConfigSection(block, at, findings), read)


def _checked(settings: ServerConfig, findings: SettingsFindings) -> LoadedConfig:
    check_config(settings, findings)
    findings.check()
    return LoadedConfig(settings, tuple(findings.warnings), findings.places)


def check_config(settings: ServerConfig, findings: SettingsFindings) -> None:
    """Add what does not fit together."""
    for name in ("port", "http_port", "https_port"):
        if getattr(settings, name) not in _PORTS:
            findings.error(None, f"{name} must be a port, or -1 for any that is free")
    for name in ("max_control_line", "max_pending", "ping_interval", "write_deadline", "ping_max"):
        if getattr(settings, name) < 0:
            findings.error(None, f"{name} must not be negative")
    if settings.max_payload > settings.max_pending:
        findings.error(None, "max_payload must not be larger than max_pending")
    if " " in settings.server_name:
        findings.error(None, "server_name must not contain spaces")
    if settings.tls is not None and not (settings.tls.cert_file and settings.tls.key_file):
        findings.error(None, "tls needs cert_file and key_file (--tlscert and --tlskey)")
    if settings.https_port and settings.tls is None:
        findings.error(None, "https_port needs a tls block")
    if settings.https_port and settings.http_port:
        findings.error(None, "monitoring has either http_port or https_port")
    _check_users(settings, findings)
    _check_accounts(settings, findings)


def _check_users(settings: ServerConfig, findings: SettingsFindings) -> None:
    names = Counter(user.name or user.nkey for user in settings.users)
    for name in sorted(name for name, number in names.items() if number > 1):
        findings.error(None, f"the user {name!r} is defined twice")
    single = settings.authorization
    if settings.users and not single.users and (single.user or single.token):
        findings.error(None, "authorization cannot have a user or token: accounts have users")
    websocket = settings.websocket
    login = websocket.authorization if websocket is not None and websocket.port else None
    if settings.users and login is not None and (login.user or login.token):
        findings.error(None, "websocket.authorization cannot have a user or token: there are users already")
    without = [settings.no_auth_user, settings.websocket.no_auth_user if settings.websocket else ""]
    for name in filter(None, without):
        if settings.operator is not None:
            findings.error(None, "no_auth_user does not work with an operator; use default_sentinel")
        elif name not in names:
            findings.error(None, f"no_auth_user {name!r} is no user")
    if settings.operator is not None and (settings.users or settings.accounts or settings.authorization.user):
        findings.error(None, "with an operator, accounts and users come from JWTs alone")


def _check_accounts(settings: ServerConfig, findings: SettingsFindings) -> None:
    exports = {account.name: account.exports for account in settings.accounts}
    names = set(exports)
    system = settings.system_account
    if system and settings.operator is None and system not in names | {SYSTEM_ACCOUNT}:
        findings.error(None, f"system_account {system!r} is no account")
    for account in settings.accounts:
        for export in account.exports:
            for unknown in sorted((export.accounts or frozenset()) - names):
                findings.error(None, f"account {account.name!r} exports to {unknown!r}, which is no account")
        for imported in account.imports:
            if imported.account not in exports:
                findings.error(None, f"account {account.name!r} imports from {imported.account!r}, which is no account")
            elif not any(permits(export, imported, account.name) for export in exports[imported.account]):
                findings.error(
                    None, f"account {account.name!r} may not import {imported.subject!r} from {imported.account!r}"
                )


def permits(export: ExportConfig, imported: ImportConfig, importer: str) -> bool:
    """Whether an export lets an account import a subject."""
    if export.kind != imported.kind or not is_subset(imported.subject, export.subject):
        return False
    if export.accounts is not None:
        return importer in export.accounts
    position = export.account_token_position
    tokens = imported.subject.split(".")
    return not position or (position <= len(tokens) and tokens[position - 1] == importer)
