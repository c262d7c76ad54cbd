"""Configurations become settings; nothing in them is silently ignored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pelton.api import AccountLimits, ConfigError
from pelton.server.settings.grammar import SettingsError
from pelton.server.settings.load import LoadedConfig
from pelton.server.settings.options import (
    AccountConfig,
    AllowDeny,
    ConnectionLimits,
    ExportConfig,
    ImportConfig,
    JetStreamConfig,
    LeafNodesConfig,
    LeafRemoteConfig,
    OperatorConfig,
    PermissionRules,
    ResponseRules,
    ServerConfig,
    TlsConfig,
    TraceConfig,
    UserConfig,
    WebSocketConfig,
)
from tests.kit.served import config_of
from tests.server.settings.oracle import verdict

NKEY = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"


def load(text: str, files: Mapping[str, str] | None = None) -> LoadedConfig:
    return config_of(text, file="x.conf", read=(files or {}).__getitem__, environment={})


def read(text: str) -> ServerConfig:
    loaded = load(text)
    assert not loaded.warnings
    return loaded.settings


def faults(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(text)
    return str(caught.value)


def test_an_empty_configuration_is_the_default() -> None:
    assert read("") == ServerConfig()


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("host: 127.0.0.1", "host", "127.0.0.1"),
        ("net: 127.0.0.1", "host", "127.0.0.1"),
        ("HOST: 127.0.0.1", "host", "127.0.0.1"),
        ("port: -1", "port", -1),
        ("listen: 4333", "port", 4333),
        ("http: 8222", "http_port", 8222),
        ("monitor_port: 8222", "http_port", 8222),
        ("max_payload: 2MB", "max_payload", 2 << 20),
        ("max_payload: 0", "max_payload", 1 << 20),
        ("max_conn: 3", "max_connections", 3),
        ("max_subs: 7", "max_subscriptions", 7),
        ("max_pending: 1G", "max_pending", 10**9),
        ("ping_interval: '1m30s'", "ping_interval", 90.0),
        ("ping_interval: 20", "ping_interval", 20.0),
        ("ping_interval: 0", "ping_interval", 120.0),
        ("write_deadline: 2s", "write_deadline", 2.0),
        ("lame_duck_duration: '60s'", "lame_duck_duration", 60.0),
        ("server_tags: [a, b]", "server_tags", ("a", "b")),
        ("server_tags: a", "server_tags", ("a",)),
        ("server_metadata: {a: b}", "server_metadata", {"a": "b"}),
        ("pidfile: /run/x.pid", "pid_file", "/run/x.pid"),
        ("jetstream: true", "jetstream", JetStreamConfig()),
        ("jetstream: enabled", "jetstream", JetStreamConfig()),
        ("jetstream: false", "jetstream", None),
        ("jetstream {enabled: false, store_dir: x}", "jetstream", None),
        (
            "store_dir: /d\njetstream {max_mem: 1GB, max_file: 2GB, domain: hub}",
            "jetstream",
            JetStreamConfig(store_dir="/d", max_memory_store=1 << 30, max_file_store=2 << 30, domain="hub"),
        ),
        (
            "jetstream {store_dir: /d, limits {max_ack_pending: 5, duplicate_window: 2s, max_request_batch: 9}}",
            "jetstream",
            JetStreamConfig(
                store_dir="/d", limits=AccountLimits(max_ack_pending=5), duplicate_window=2.0, max_request_batch=9
            ),
        ),
        (
            "websocket {port: 8080, no_tls: true, compression: true, allowed_origins: ['http://a']}",
            "websocket",
            WebSocketConfig(port=8080, no_tls=True, compression=True, allowed_origins=("http://a",)),
        ),
    ],
)
def test_values(text: str, field: str, value: object) -> None:
    assert getattr(read(text), field) == value


def test_an_address_has_a_host_and_a_port() -> None:
    assert (read('listen: "[::1]:4333"').host, read('listen: "[::1]:4333"').port) == ("::1", 4333)
    assert (read("http: localhost:8222").http_host, read("http: localhost:8222").http_port) == ("localhost", 8222)
    assert "HOST:PORT" in faults("listen: '4222'")


def test_tls() -> None:
    text = "tls {cert_file: c, key_file: k, ca_file: a, verify_and_map: true, timeout: 1.5, handshake_first: %s}"
    common = TlsConfig(cert_file="c", key_file="k", ca_file="a", verify_and_map=True, timeout=1.5)
    for said, first in (("true", True), ("auto", 0.05), ("'300ms'", 0.3)):
        found = read(text % said).tls
        assert found is not None
        assert found.handshake_first == first
        assert (found.ca_file, found.verify_and_map, found.timeout) == ("a", True, common.timeout)
    assert "cert_file and key_file" in faults("tls {cert_file: c}")
    assert "1.2 or 1.3" in faults("tls {cert_file: c, key_file: k, min_version: '1.0'}")


def test_users_have_permissions_and_the_default_ones() -> None:
    found = read(
        f"""
        authorization {{
          default_permissions {{ publish: "a.>", subscribe: {{ deny: ["b", "c.* workers"] }} }}
          timeout: 5
          users: [
            {{user: ann, password: x}}
            {{username: bob, pass: y, permissions: {{ pub: [], allow_responses: true }}}},
            {{nkey: {NKEY}, permission: {{ sub: [q], allow_responses: {{max: 5, expires: "1m"}} }},
              allowed_connection_types: [websocket]}}
          ]
        }}
        no_auth_user: ann
        """
    )
    defaults = PermissionRules(publish=AllowDeny(allow=("a.>",)), subscribe=AllowDeny(deny=("b", "c.* workers")))
    assert found.authorization.timeout == 5
    assert found.users == (
        UserConfig(name="ann", password="x", permissions=defaults),
        UserConfig(
            name="bob",
            password="y",
            permissions=PermissionRules(publish=AllowDeny(allow=()), allow_responses=ResponseRules()),
        ),
        UserConfig(
            nkey=NKEY,
            connection_types=frozenset({"WEBSOCKET"}),
            permissions=PermissionRules(
                publish=AllowDeny(allow=()),
                subscribe=AllowDeny(allow=("q",)),
                allow_responses=ResponseRules(max_msgs=5, expires=60.0),
            ),
        ),
    )


def test_accounts() -> None:
    found = read(
        """
        accounts {
          A {
            users: [{user: a, password: x}]
            jetstream { max_mem: 1M, max_file: 2M, max_streams: 3, max_consumers: 4, max_bytes_required: true,
                        mem_max_stream_bytes: 5, disk_max_stream_bytes: 6, max_ack_pending: 7 }
            limits { max_conn: 1, max_subs: 2, max_payload: 3 }
            exports: [
              {stream: "events.>"}
              {service: "ask.*", accounts: [B], response_type: stream, threshold: "2s"}
            ]
          }
          B {
            jetstream: enabled
            imports: [
              {stream: {account: A, subject: "events.eu"}, prefix: "from.a"}
              {service: {account: A, subject: "ask.b"}, to: "ask"}
            ]
          }
        }
        """
    )
    limits = AccountLimits(
        max_memory=10**6,
        max_storage=2 * 10**6,
        max_streams=3,
        max_consumers=4,
        max_bytes_required=True,
        memory_max_stream_bytes=5,
        storage_max_stream_bytes=6,
        max_ack_pending=7,
    )
    assert found.users == (UserConfig(name="a", password="x", account="A"),)
    assert found.accounts == (
        AccountConfig(
            name="A",
            jetstream=limits,
            limits=ConnectionLimits(max_connections=1, max_subscriptions=2, max_payload=3),
            exports=(
                ExportConfig(kind="stream", subject="events.>"),
                ExportConfig(
                    kind="service",
                    subject="ask.*",
                    accounts=frozenset("B"),
                    response_type="Stream",
                    response_threshold=2.0,
                ),
            ),
        ),
        AccountConfig(
            name="B",
            jetstream=AccountLimits(),
            imports=(
                ImportConfig(kind="stream", account="A", subject="events.eu", to="from.a.events.eu"),
                ImportConfig(kind="service", account="A", subject="ask.b", to="ask"),
            ),
        ),
    )


def test_leaf_nodes() -> None:
    text = """
        accounts { A {} }
        leafnodes { reconnect: 2s, remotes: [
            { url: "nats-leaf://a:b@hub:7422", account: A, credentials: x.creds, deny_import: [a.>], deny_exports: b }
            { urls: ["tls://hub1", "tls://[::1]:7000"], nkey: SU, tls { ca_file: ca } } ] }
    """
    first = LeafRemoteConfig(
        urls=("nats-leaf://a:b@hub:7422",),
        account="A",
        credentials="x.creds",
        deny_imports=("a.>",),
        deny_exports=("b",),
        reconnect=2.0,
    )
    urls = ("tls://hub1", "tls://[::1]:7000")
    second = LeafRemoteConfig(urls=urls, nkey="SU", tls=TlsConfig(ca_file="ca"), reconnect=2.0)
    assert read(text).leafnodes == LeafNodesConfig(reconnect=2.0, remotes=(first, second))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: 7422", "listen in leafnodes is not supported: a server can be a leaf node"),
        ("port: 7422", "port in leafnodes is not supported"),
        ("remotes: [{}]", "the url of a hub is none"),
        ('remotes: [{url: "ws://hub"}]', "the url of a hub is 'ws://hub'"),
        ('remotes: [{url: "nats://a:secret@hub:x"}]', "the url of a hub is 'hub:x'"),
        ('remotes: [{url: "nats://hub", account: A}]', "'A' is no account"),
        ('remotes: [{url: "nats://hub", account: "$SYS"}]', "the system account cannot have a hub yet"),
        ('remotes: [{url: "nats://hub", nkey: SU, creds: a}]', "credentials or an nkey"),
        ('remotes: [{url: "nats://hub", hub: true}]', "not yet"),
        ('remotes: [{url: "nats://hub", compression: s2_fast}]', "messages are not compressed yet"),
        ('remotes: [{url: "nats://hub", urlz: a}]', "urlz"),
    ],
)
def test_leaf_nodes_that_cannot_be(text: str, expected: str) -> None:
    assert expected in faults(f"leafnodes {{ {text} }}")


def test_accounts_may_be_a_list_of_names() -> None:
    assert read("accounts: [A, B]").accounts == (AccountConfig(name="A"), AccountConfig(name="B"))


def test_operator_mode() -> None:
    token = "eyJh.eyJi.c-_"
    text = "operator: op.jwt\nresolver: MEMORY\nsystem_account: AS\nresolver_preload: {AX: eyJ.a.b}"
    decorated = f"-----BEGIN NATS OPERATOR JWT-----\n{token}\n------END NATS OPERATOR JWT------\n"
    found = load(text, {"op.jwt": decorated}).settings
    assert found.operator == OperatorConfig(operators=(token,), accounts={"AX": "eyJ.a.b"})
    assert found.system_account == "AS"
    assert load(f"operator: [{token}]\nresolver: {{type: memory}}").settings.operator == OperatorConfig(
        operators=(token,)
    )
    assert load(f"operator: {token}\nresolver: {{type: full, dir: x}}").settings.operator == OperatorConfig(
        operators=(token,), resolver="full", folder="x"
    )
    assert "accepts no allow_delete" in faults("resolver: {type: cache, dir: x, allow_delete: true}")
    assert "MEMORY" in faults("resolver: {type: full}")
    assert "not fetched from a URL" in faults("resolver: URL(http://a/b)")
    assert "need an operator" in faults("resolver_preload: {A: b}")
    assert "from JWTs alone" in faults(f"operator: {token}\nauthorization {{users: [{{user: a, password: b}}]}}")


# What is wrong, and what the message says; nats-server refuses these, too.
WRONG = [
    ("foo: 1", "x.conf:1:1: unknown key 'foo'"),
    ("a: 1\n  bar: 2", "x.conf:2:3: unknown key 'bar'"),
    ("tls {foo: 1}", "x.conf:1:6: unknown key 'foo' in tls"),
    ("authorization {users: [{user: a, password: b, x: 1}]}", "unknown key 'x' in authorization.users"),
    ("port: a", "port must be an integer"),
    ("port: on", "port must be an integer or a size such as 64K or 1MB, without quotes, not true"),
    ("port: 1.5", "not the number 1.5"),
    ("max_payload: '1MB'", "without quotes"),
    ("host: 1", "host must be a text, not the number 1"),
    ("host: [a]", "not a list"),
    ("host: {}", "not a block"),
    ("host: 2016-05-04T18:53:41Z", "not a time"),
    ("server_name: 'a b'", "spaces"),
    ("no_header_support: 1", "must be true or false"),
    ("write_deadline: x", "write_deadline: 'x' is no duration"),
    ("write_deadline: true", "a duration such as"),
    ("lame_duck_duration: '5s'", "30s or more"),
    ("server_tags: [[a]]", "a list of texts"),
    ("server_metadata: {a: 1}", "a block of texts"),
    ("tls: on", "a block in braces"),
    ("authorization {users: a}", "a list of blocks"),
    ("jetstream: foo", "enabled, disabled, or a block"),
    ("jetstream: 1", "enabled, disabled, or a block"),
    ("store_dir: x\njetstream {store_dir: y}", "given twice"),
    ("authorization {users: [{user: a, password: b}], user: c, password: d}", "cannot have a user"),
    ("authorization {user: a, token: b}", "both a user and a token"),
    ("authorization {token: t}\naccounts {A {users: [{user: a, password: b}]}}", "accounts have users"),
    ("accounts {A {users: [{user: a, password: b}]}}\nauthorization {user: c, password: d}", "accounts have users"),
    ("authorization {users: [{password: b}]}", "either a name"),
    ("authorization {users: [{nkey: a}]}", "public key of a user"),
    (f"authorization {{users: [{{nkey: {NKEY[:-1]}A}}]}}", "public key of a user"),
    ("authorization {users: [{user: a, password: b}, {user: a, password: c}]}", "defined twice"),
    ("authorization {users: [{user: a, allowed_connection_types: [foo]}]}", "unknown connection type 'FOO'"),
    ("authorization {users: [{user: a, permissions: {pub: 'a..b'}}]}", "no valid subject"),
    ("authorization {users: [{user: a, permissions: {pub: 'a b'}}]}", "no valid subject"),
    ("authorization {users: [{user: a, permissions: {sub: 'a b c'}}]}", "no valid subject"),
    ("authorization {users: [{user: a, permissions: {sub: ''}}]}", "no valid subject"),
    ("authorization {users: [{user: a, permissions: {sub: [1, 2 ]}}]}", "must be a subject"),
    ("authorization {users: [{user: a, permissions: {allow_responses: 1}}]}", "allow_responses must be"),
    ("authorization {users: [{user: a, permissions: {allow_responses: {expires: 1m}}}]}", "expires must be a duration"),
    ("authorization {users: [{user: a, permissions: {sub: {permit: a}}}]}", "unknown key 'permit'"),
    ("accounts { A: x }", "must be a block"),
    ("accounts { '$G' {} }", "cannot be the name"),
    ("accounts { A { jetstream: foo } }", "enabled, disabled, or a block"),
    ("accounts { A { exports: [{stream: a, service: b}] } }", "either a stream or a service"),
    ("accounts { A { exports: [{service: a, response_type: foo}] } }", "single, stream or chunked"),
    ("accounts { A { exports: [{service: a, accounts: [B]}] } }", "exports to 'B'"),
    ("accounts { A { imports: [{stream: {account: B, subject: x}}] } }", "imports from 'B'"),
    ("accounts { A { imports: [{stream: {account: B, subject: x}}] }, B {} }", "may not import 'x' from 'B'"),
    ("accounts { A { imports: [{stream: {account: B}}] }, B {} }", "an account and a subject"),
    (
        "accounts { A { imports: [{stream: {account: B, subject: 'x.*'}}] }, B {exports: [{stream: 'x.y'}]} }",
        "may not import 'x.*' from 'B'",
    ),
    (
        "accounts {A {imports: [{stream: {account: B, subject: x}}]}, B {exports: [{stream: x, accounts: [C]}]}\nC {}}",
        "may not import 'x' from 'B'",
    ),
]


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_what_is_wrong_is_said(text: str, expected: str, tmp_path: Path) -> None:
    assert expected in faults(text)
    assert not verdict(tmp_path, text).digest


# nats-server lets these through when it checks a file; some of them stop it at its start.
STRICTER = [
    ("accounts: x", "a list of names"),
    ("accounts { A { exports: [{service: 'a..b'}] } }", "no valid subject"),
    (
        "accounts { A { imports: [{stream: {account: B, subject: x}, to: y, prefix: z}]}, B {exports: [{stream: x}]}}",
        "either to or prefix",
    ),
    ("no_auth_user: c", "is no user"),
    ("system_account: X", "is no account"),
    ("authorization {password: a}", "a password but no user"),
    ("port: 70000", "port must be a port"),
    ("max_payload: 100MB", "larger than max_pending"),
    ("max_control_line: -1", "must not be negative"),
    ("https_port: 8443", "needs a tls block"),
    ("http_port: 1\nhttps_port: 2", "either http_port or https_port"),
    ("tls {}", "needs cert_file and key_file"),
    ("websocket {port: 8080}", "no_tls: true"),
    ("accounts { 'a/b' {} }", "cannot be the name"),
    ("accounts { '../x' {} }", "cannot be the name"),
]


@pytest.mark.parametrize(("text", "expected"), STRICTER)
def test_what_could_not_work_is_refused(text: str, expected: str) -> None:
    assert expected in faults(text)


def test_all_errors_are_said_at_once() -> None:
    assert len(faults("foo: 1\nport: a\nhost: 1\nlame_duck_duration: '1s'").splitlines()) == 4
    assert issubclass(SettingsError, ConfigError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cluster {name: x}", "cluster is not supported: Pelton serves one file from one machine"),
        ("gateway {name: x}", "gateway is not supported"),
        ("mqtt {port: 1883}", "mqtt is not supported"),
        ("mappings {a: b}", "subject transform"),
        ("authorization {auth_callout {issuer: x}}", "auth_callout in authorization is not supported"),
        ("tls {cert_file: a, key_file: b, pinned_certs: [a]}", "pinned_certs in tls is not supported"),
        ("jetstream {key: abc}", "guide on encryption"),
        ("accounts {A {mappings {a: b}}}", "mappings in accounts.A is not supported"),
        ("accounts {A {exports: [{service: a, latency: b}]}}", "latency in accounts.A.exports"),
    ],
)
def test_what_nats_has_and_pelton_has_not_is_refused_with_the_reason(text: str, expected: str) -> None:
    assert expected in faults(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("debug: true", "x.conf:1:1: debug has no effect: the log goes to standard error"),
        ("logfile: /var/log/x", "logfile has no effect"),
        ("jetstream {sync_interval: always}", "sync_interval in jetstream has no effect: a message is always on disk"),
        ("accounts {A {limits {max_leafnodes: 3}}}", "max_leafnodes in accounts.A.limits"),
    ],
)
def test_what_only_tunes_nats_server_is_a_warning(text: str, expected: str) -> None:
    assert [expected in str(warning) for warning in load(text).warnings] == [True]


def test_what_is_off_is_no_warning() -> None:
    assert not load("debug: false\ntrace: off\nprof_port: 0\nlogfile: ''\nproxy_protocol: false").warnings


def test_variables_are_no_unknown_keys() -> None:
    assert read("P: 4333\nport: $P").port == 4333
    assert read("authorization { W: secret\n user: a\n password: $W }").authorization.password == "secret"
    assert "unknown key 'Q'" in faults("P: 4333\nQ: 2\nport: $P")


def test_the_guide_shows_a_configuration() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "servers" / "serve.md").read_text()
    text = guide.partition("```text\nlisten")[2].partition("```")[0]
    loaded = config_of(f"listen{text}", read=lambda path: "", environment={"WORKER_PASSWORD": "x"})
    assert not loaded.warnings
    assert [user.name or user.nkey for user in loaded.settings.users] == ["boss", "worker", NKEY]
    assert [account.name for account in loaded.settings.accounts] == ["GARAGE", "SHOP"]


def test_where_an_account_has_traces_told() -> None:
    def tracing(text: str) -> TraceConfig:
        return load(f"accounts {{ A {{ {text} }} }}").settings.accounts[0].tracing

    assert tracing("") == TraceConfig()
    assert tracing("msg_trace: t.u") == tracing("trace_dest: {dest: t.u}") == TraceConfig(destination="t.u")
    assert tracing("msg_trace: {dest: t, sampling: '5%'}") == TraceConfig(destination="t", sampling=5)
    for wrong in (
        "msg_trace: 't.*'",
        "msg_trace: {sampling: 5}",
        "msg_trace: 5.5.",
        "msg_trace: {dest: t, sampling: 0}",
    ):
        assert "msg_trace" in faults(f"accounts {{ A {{ {wrong} }} }}")
    for wrong in (
        "exports: [{stream: x, allow_trace: true}]",
        "imports: [{service: {account: B, subject: q}, allow_trace: true}]",
    ):
        assert "allow_trace is for" in faults(f"accounts {{ A {{ {wrong} }}, B {{}} }}")
