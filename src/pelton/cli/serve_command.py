"""``pelton serve``: a NATS server on a store, for any NATS client.

The flags and the configuration file are those of nats-server, where they mean the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, get_args

from msgspec.structs import replace

from pelton._version import VERSION
from pelton.api import ConfigError, PeltonError
from pelton.api.keys import KeyFile, key_bytes
from pelton.cli.arguments import KEY_VARIABLE, Arguments, declare
from pelton.cli.output import write_json, write_line, write_line_as_is
from pelton.runtime import Runtime, Signal, system_runtime
from pelton.runtime.processes import ShortCollections
from pelton.server import Server, ServerSettings
from pelton.server.accounts import AccountResolver, accounts_of_server, system_account_of
from pelton.server.crossing import AccountExchange
from pelton.server.listening import ConfiguredDoor
from pelton.server.settings.grammar import SettingsError
from pelton.server.settings.load import CommandLine, LoadedConfig, config_of_command, parse_flags
from pelton.server.settings.options import FLAGS, ServerConfig
from pelton.server.settings.runtime import check_configs, runtime_settings
from pelton.server.users import ConfiguredUsers
from pelton.storage import SyncMode

_NS: Final = 1_000_000_000
_KEY_BYTES: Final = 32
_NONE: Final[Mapping[str, str]] = {}
_NO_PREFIX: Final = "\0"
_STORE_HELP: Final = (
    "STORE is the file of the store; it is created if it is missing. Without one, the server has no JetStream;",
    "with -js it keeps its streams in the folder of -sd, or in one of its own, which it names.",
    "",
)


class _Command(NamedTuple):
    """What a command line asks for, checked."""

    line: CommandLine
    loaded: LoadedConfig
    settings: ServerSettings
    users: ConfiguredUsers

    @property
    def folder(self) -> str:
        """Where the stores of accounts are, empty if nowhere."""
        jetstream = self.loaded.settings.jetstream
        return jetstream.store_dir if jetstream is not None else ""

    @property
    def pid_file(self) -> str:
        return self.loaded.settings.pid_file


def _define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser, which leaves them as they are: argparse has other rules for flags."""
    parser.prefix_chars = _NO_PREFIX
    parser.usage = "pelton serve [STORE] [flags]"
    parser.epilog = "\n".join([*_STORE_HELP, *_help_lines()])
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(help=parser.format_help)


def _help_lines() -> list[str]:
    lines = []
    for option in FLAGS.values():
        names = ", ".join(f"-{name}" if len(name) < 3 else f"--{name}" for name in option.flag.split())
        value = "" if option.kind == "flag" else f" {option.kind}".upper()
        lines.append(f"  {names + value:<38} {option.help}")
    return lines


@declare("serve", description=__doc__, formatter=argparse.RawDescriptionHelpFormatter)
@Arguments(_define)
def run_serve(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; return 0, or 1 if the settings are not valid."""
    runtime = system_runtime()
    try:
        line = parse_flags(options.words)
        if line.has("help"):
            write_line_as_is(options.help().rstrip("\n"))
            raise SystemExit(0)
        if line.has("version"):
            write_line(f"pelton {VERSION}")
            return 0
        command = _command(line, runtime)
    except SettingsError as error:
        for fault in error.faults:
            write_line(f"pelton: {fault}", error=True)
        return 1
    for warning in command.loaded.warnings:
        write_line(f"pelton: {warning}", error=True)
    if line.has("check"):
        write_line("the settings are valid", error=True)
        return 0
    with ShortCollections(runtime.clock.monotonic):
        return asyncio.run(_serve(command, runtime))


def _command(line: CommandLine, runtime: Runtime, pushed: Mapping[str, str] = _NONE) -> _Command:
    """Return what a command line asks for; ``pushed`` are JWTs of accounts that have none in a file.

    Raises ConfigError.
    """
    if len(line.stores) > 1:
        raise ConfigError(f"serve takes one store, not {len(line.stores)}")
    try:
        loaded = config_of_command(line, read=_read, environment=os.environ)
    except OSError as error:
        raise ConfigError(f"the configuration {line.config!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {line.config!r} cannot be read: it is no UTF-8 ({error})") from None
    operator = loaded.settings.operator
    if operator is not None:
        stored = _stored_accounts(operator.folder) if operator.folder else {}
        operator = replace(operator, accounts={**operator.accounts, **pushed}, stored=stored)
        loaded = loaded._replace(settings=replace(loaded.settings, operator=operator))
    users = ConfiguredUsers(loaded.settings, runtime.random.randbytes(_KEY_BYTES))
    accounts = accounts_of_server(loaded.settings, users.trust, runtime.clock.now() / _NS)
    AccountExchange(accounts.values())
    settings = runtime_settings(
        loaded.settings,
        accounts,
        store="".join(line.stores),
        sync=_sync(loaded.settings),
        key=key_bytes(KeyFile(named) if (named := loaded.settings.key_file) else os.environ.get(KEY_VARIABLE) or None),
        system_account=system_account_of(loaded.settings, users.trust),
        digest=f"sha256:{sha256(_read(line.config).encode()).hexdigest()}" if line.config else "",
        places=loaded.places,
    )
    if operator is not None and operator.folder and not settings.system_account:
        raise ConfigError("a resolver with a folder needs a system account: give system_account, or name it in the JWT")
    return _Command(line, loaded, settings, users)


def _stored_accounts(folder: str) -> dict[str, str]:
    """Return the JWTs in a resolver's folder, by the accounts' public keys. Raises ConfigError."""
    try:
        found = {path.stem: _read(str(path)).strip() for path in sorted(Path(folder).glob("*.jwt"))}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the accounts in the resolver's folder {folder!r} cannot be read: {error}") from None
    return found


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _sync(config: ServerConfig) -> SyncMode:
    given = config.sync or "commit"
    for mode in get_args(SyncMode):
        if given == mode:
            found: SyncMode = mode
            return found
    raise ConfigError(f"--sync is {given!r}: give commit, interval or off")


def _write_pid(path: str) -> None:
    if path:
        Path(path).write_text(f"{os.getpid()}\n")


def _make_folder(path: str) -> None:
    """Make the folder for stores, for its owner alone. Raises ConfigError."""
    try:
        if path:
            os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder {path!r} cannot be made: {error.strerror}; give another one with -sd") from None


async def _serve(command: _Command, runtime: Runtime) -> int:
    loop, over, is_lame = asyncio.get_running_loop(), Signal(), False

    def lame_duck() -> None:
        nonlocal is_lame
        is_lame = True
        over.notify()

    seen = over.generation
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.notify)
    loop.add_signal_handler(signal.SIGUSR2, lame_duck)
    _make_folder(command.folder)
    door = ConfiguredDoor(command.users, runtime.clock)
    server = Server(command.settings, runtime, door)
    server.on_failure(over.notify)
    await server.start()
    reloading = _Reloading(command, server, door, runtime)
    server.on_reload(reloading.read_again)
    server.resolver = reloading.resolver()
    loop.add_signal_handler(signal.SIGHUP, lambda: runtime.spawn(reloading.on_signal(), "pelton reads its settings"))
    ports = Path(command.loaded.settings.ports_file_dir) / f"nats-server_{os.getpid()}.ports"
    try:
        _write_pid(command.pid_file)
        if command.loaded.settings.ports_file_dir:
            _write_ports(ports, server)
        _announce(command, server)
        if command.line.has("json"):
            write_json(_addresses_of(server))
        seen = await over.wait(seen)
        if is_lame:
            duck = runtime.spawn(server.lame_duck(), "pelton lets its clients go")
            await _first_of(duck, runtime, over, seen)
    finally:
        await server.close()
        ports.unlink(missing_ok=True)
    if server.failure is None:
        return 0
    write_line(f"pelton: {server.failure}", error=True)
    return 1


def _announce(command: _Command, server: Server) -> None:
    """Say where the server listens, and where its streams are."""
    lines = [f"Listening for client connections on {endpoint}" for endpoint in server.endpoints]
    if command.folder:
        lines.append(f'Store Directory: "{command.folder}"')
    elif not command.settings.stores:
        lines.append("There is no store: core NATS alone (give a store, or -js)")
    if server.websocket_endpoint is not None:
        lines.append(f"Listening for websocket clients on {_websocket_url(server)}")
    if server.monitoring_endpoint is not None:
        lines.append(f"Starting http monitor on {server.monitoring_endpoint}")
    for line in (*lines, "Server is ready"):
        write_line(line, error=True, flush=True)


def _websocket_url(server: Server) -> str:
    door = server.settings.websocket
    return f"{'ws' if door is None or door.tls is None else 'wss'}://{server.websocket_endpoint}"


def _write_ports(path: Path, server: Server) -> None:
    """Write the file with the ports, as nats-server does; who started the server reads there what it got."""
    try:
        path.write_text(json.dumps(_addresses_of(server)))
    except OSError as error:
        write_line(f"pelton: the file with the ports {str(path)!r} cannot be written: {error.strerror}", error=True)


def _addresses_of(server: Server) -> dict[str, list[str]]:
    found = {"nats": [f"nats://{endpoint}" for endpoint in server.endpoints if not endpoint.path]}
    if server.monitoring_endpoint is not None:
        found["monitoring"] = [f"http://{server.monitoring_endpoint}"]
    if server.websocket_endpoint is not None:
        found["websocket"] = [_websocket_url(server)]
    return found


class _Reloading:
    """Reads the settings of a running server again; with a mistake in them, all stays as it was."""

    def __init__(self, command: _Command, server: Server, door: ConfiguredDoor, runtime: Runtime) -> None:
        self._command = command
        self._server = server
        self._door = door
        self._runtime = runtime
        # JWTs that a resolver without a folder was given: they last as long as the server.
        self._pushed: dict[str, str] = {}

    async def on_signal(self) -> None:
        """Read them, and say so."""
        try:
            await self.read_again()
        except PeltonError as error:
            faults = error.faults if isinstance(error, SettingsError) else (error,)
            for fault in faults:
                write_line(f"pelton: the settings stay as they were: {fault}", error=True, flush=True)
            return
        write_line("Reloaded server configuration", error=True, flush=True)

    async def read_again(self) -> None:
        """Read them. Raises ConfigError, StoreError."""
        command = _command(self._command.line, self._runtime, self._pushed)
        check_configs(self._command.loaded.settings, command.loaded.settings, command.loaded.places)
        _make_folder(command.folder)
        await self._server.reload(command.settings, partial(self._apply, command))

    def _apply(self, command: _Command) -> None:
        """Go on with a command's users, and whatever else the server does not know of."""
        for warning in command.loaded.warnings:
            if warning not in self._command.loaded.warnings:
                write_line(f"pelton: {warning}", error=True)
        if command.pid_file != self._command.pid_file:
            _write_pid(command.pid_file)
        command.users.remember(self._door.users)
        self._command, self._door.users = command, command.users
        self._server.resolver = self.resolver()

    def resolver(self) -> AccountResolver | None:
        """Return what takes the accounts that an operator pushes; None without an operator."""
        operator, trust = self._command.loaded.settings.operator, self._command.users.trust
        if operator is None or trust is None:
            return None
        system_account = self._command.settings.system_account
        return AccountResolver(operator, trust.trusted, system_account, self._pushed, self.read_again)


async def _first_of(duck: asyncio.Task[None], runtime: Runtime, over: Signal, seen: int) -> None:
    """Wait until all clients have left, or for another signal."""
    again = runtime.spawn(_wait_for_signal(over, seen), "pelton waits for another signal")
    await asyncio.wait([duck, again], return_when=asyncio.FIRST_COMPLETED)
    for task in (duck, again):
        task.cancel()
    await asyncio.gather(duck, again, return_exceptions=True)


async def _wait_for_signal(over: Signal, seen: int) -> None:
    await over.wait(seen)
