"""The command line of a server: nats-server's flags mean the same here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pelton.server.settings.grammar import SettingsError
from pelton.server.settings.load import config_of_command, parse_flags
from pelton.server.settings.options import (
    FLAGS,
    IGNORED,
    IGNORED_FLAGS,
    OPTIONS,
    REFUSED,
    REFUSED_FLAGS,
    AuthorizationConfig,
    JetStreamConfig,
    LeafNodesConfig,
    LeafRemoteConfig,
    ServerConfig,
    TlsConfig,
)
from tests.kit.nats_server import binary


def config(*words: str, file: str = "") -> ServerConfig:
    return config_of_command(parse_flags(words), read=lambda path: file, environment={}).settings


def faults(*words: str) -> str:
    with pytest.raises(SettingsError) as caught:
        config(*words)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ServerConfig()),
        (["-p", "-1"], ServerConfig(port=-1)),
        (["--port", "4333"], ServerConfig(port=4333)),
        (["-port=4333"], ServerConfig(port=4333)),
        (["-a", "127.0.0.1", "-m", "8222"], ServerConfig(host="127.0.0.1", http_port=8222)),
        (["--addr=::1", "--http_port=8222"], ServerConfig(host="::1", http_port=8222)),
        (["-n", "one"], ServerConfig(server_name="one")),
        (["--server_name", "one"], ServerConfig(server_name="one")),
        (["-js"], ServerConfig(jetstream=JetStreamConfig())),
        (["--jetstream=true"], ServerConfig(jetstream=JetStreamConfig())),
        (["-js=false"], ServerConfig()),
        (["-js", "-sd=/data"], ServerConfig(jetstream=JetStreamConfig(store_dir="/data"))),
        (["-js", "--store_dir", "/data"], ServerConfig(jetstream=JetStreamConfig(store_dir="/data"))),
        (["-sd", "/data"], ServerConfig(jetstream=JetStreamConfig(store_dir="/data"))),
        (["--user", "a", "--pass", "b"], ServerConfig(authorization=AuthorizationConfig(user="a", password="b"))),
        (["--auth", "s3cr3t"], ServerConfig(authorization=AuthorizationConfig(token="s3cr3t"))),
        (
            ["--leaf", "nats://a:7422,nats://b:7422", "--creds=x"],
            ServerConfig(
                leafnodes=LeafNodesConfig(
                    remotes=(LeafRemoteConfig(urls=("nats://a:7422", "nats://b:7422"), credentials="x"),)
                )
            ),
        ),
        (["-P", "/run/x.pid"], ServerConfig(pid_file="/run/x.pid")),
        (["--unix", "/run/x.sock"], ServerConfig(unix_socket="/run/x.sock")),
        (
            ["--tlsverify", "--tlscert=c", "--tlskey=k", "--tlscacert=a"],
            ServerConfig(tls=TlsConfig(cert_file="c", key_file="k", ca_file="a", verify=True)),
        ),
    ],
)
def test_flags(words: list[str], expected: ServerConfig) -> None:
    assert config(*words) == expected


def test_stores_stand_anywhere() -> None:
    line = parse_flags(["a.pelton", "-p", "4333", "-js", "b.pelton", "--", "-c.pelton"])
    assert line.stores == ("a.pelton", "b.pelton", "-c.pelton")
    assert line.values == {"port": 4333, "jetstream": True}


def test_flags_count_more_than_the_file() -> None:
    file = "port: 1\nhost: a\nauthorization {users: [{user: u, password: v}]}\njetstream {store_dir: /d, domain: hub}"
    found = config("-c", "x.conf", "-p", "2", "-sd", "/e", "--user", "x", "--pass", "y", file=file)
    assert (found.port, found.host, found.users) == (2, "a", ())
    assert found.authorization == AuthorizationConfig(user="x", password="y")
    assert found.jetstream == JetStreamConfig(store_dir="/e", domain="hub")


def test_a_file_may_need_what_flags_add() -> None:
    found = config("-c", "x.conf", "--tlscert", "c", "--tlskey", "k", file="tls {verify: true, ca_file: a}")
    assert found.tls == TlsConfig(cert_file="c", key_file="k", ca_file="a", verify=True)


def test_switches() -> None:
    line = parse_flags(["-t", "--version", "-h=false"])
    assert [line.has(each) for each in ("check", "version", "help")] == [True, True, False]
    assert parse_flags(["-c=x.conf"]).config == "x.conf"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--foo"], "unknown flag --foo"),
        (["-x=1"], "unknown flag -x"),
        (["-p"], "-p needs a value"),
        (["-p", "x"], "-p needs a number, not 'x'"),
        (["-js=maybe"], "-js is a switch"),
        (["--cluster", "nats://x:1"], "--cluster is not supported: Pelton serves one file"),
        (["--routes=nats://x:1"], "--routes is not supported"),
        (["-sl", "ldm"], "SIGUSR2"),
        (["--tls"], "tls needs cert_file and key_file"),
        (["-p", "99999"], "port must be a port"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], expected: str) -> None:
    assert expected in faults(*words)


def test_flags_without_effect_are_warnings() -> None:
    line = parse_flags(["-D", "-l", "x.log", "-DV", "--logtime=false", "store"])
    assert [str(warning).split(" ")[0] for warning in line.warnings] == ["-D", "-l", "-DV", "--logtime"]
    assert line.stores == ("store",)


def test_every_flag_of_nats_server_is_known() -> None:
    said = subprocess.run([str(binary()), "--help"], capture_output=True, text=True, check=False)
    options = [line.strip() for line in (said.stdout + said.stderr).splitlines() if line.strip().startswith("-")]
    names = {name for line in options for name in re.findall(r"(?<![\w-])--?([\w]+)", line.split("  ")[0])}
    assert len(names) > 60
    known = (
        {name for option in FLAGS.values() for name in option.flag.split()} | set(REFUSED_FLAGS) | set(IGNORED_FLAGS)
    )
    assert names - known == {"help_tls"}


def test_each_key_and_flag_belongs_to_one_option() -> None:
    keys = [key for path, option in OPTIONS.items() for key in places(path, option.keys)]
    flags = [name for option in FLAGS.values() for name in option.flag.split()]
    assert len(set(keys)) == len(keys) > 60
    assert len(set(flags)) == len(flags) > 40
    assert not set(flags) & (set(REFUSED_FLAGS) | set(IGNORED_FLAGS))
    read = {path.rpartition(".")[0] for path in OPTIONS} | set(REFUSED) | set(IGNORED)
    for block in read:
        known = {key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == block}
        assert not known & (set(REFUSED.get(block, ())) | set(IGNORED.get(block, ())))


def places(path: str, keys: str) -> list[str]:
    block = path.rpartition(".")[0]
    return [f"{block}.{key}" if block else key for key in keys.split()]


def test_the_guide_names_no_flag_that_is_not_there() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "servers" / "serve.md").read_text()
    table = guide.partition("\n## Flags\n")[2].partition("\n## ")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`--?([\w-]+)", row)
    }
    assert len(named) > 30
    assert named <= {name for option in FLAGS.values() for name in option.flag.split()}
