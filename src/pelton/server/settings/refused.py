"""Keys and flags of nats-server that Pelton knows and does not honour, each with the reason. Pure data.

Nothing is silently ignored. A key is *refused* if leaving it out would change who may do what, where data goes, or
what is promised; the server does not start. A key is *ignored*, with a warning, if it only tunes or describes
nats-server. By section; "" is the outermost. Keys in neither table, and read by no one, are unknown.
"""

from __future__ import annotations

from typing import Final

_ONE_SERVER: Final = (
    "Pelton serves one file from one machine; run a NATS cluster and open it with pelton.open('nats://...')"
)
_LOG: Final = "the log goes to standard error, and is quiet by default"
_LATER: Final = "leave it out"
_SYNC: Final = "a message is always on disk before it is acknowledged"
_ENCRYPTION: Final = "a store is encrypted with a key of its own: see the guide on encryption"
_CERTIFICATES: Final = "use cert_file, key_file and ca_file"
_CIPHERS: Final = "the system's OpenSSL configuration chooses them"
_TUNING: Final = "it tunes nats-server's own store"
_OCSP: Final = "certificates are not checked with OCSP"

REFUSED: Final[dict[str, dict[str, str]]] = {
    "": {
        "cluster": _ONE_SERVER,
        "gateway": _ONE_SERVER,
        "leaf": _ONE_SERVER,
        "leafnodes": _ONE_SERVER,
        "mqtt": "connect MQTT devices to a NATS server",
        "mappings": "map subjects with a subject transform of a stream",
        "maps": "map subjects with a subject transform of a stream",
        "ocsp": _OCSP,
        "proxies": "clients connect to the server itself",
        "proxy_protocol": "clients connect to the server itself",
        "resolver_tls": "only the memory resolver is supported, with resolver_preload",
        "resolver_pinned_accounts": "only the memory resolver is supported, with resolver_preload",
    },
    "authorization": {
        "auth_callout": "list users, or use JWTs with the memory resolver",
        "auth_hook": "list users, or use JWTs with the memory resolver",
        "proxy_required": "clients connect to the server itself",
    },
    "user": {"proxy_required": "clients connect to the server itself"},
    "tls": {
        "cipher_suites": _CIPHERS,
        "curve_preferences": _CIPHERS,
        "allow_insecure_cipher_suites": _CIPHERS,
        "pinned_certs": "name users by their certificates, with verify_and_map",
        "verify_cert_and_check_known_urls": _ONE_SERVER,
        "connection_rate_limit": _LATER,
        "insecure": _LATER,
        "ocsp_peer": _OCSP,
        "certs": _CERTIFICATES,
        "certificates": _CERTIFICATES,
        "cert_store": _CERTIFICATES,
        "cert_match": _CERTIFICATES,
        "cert_match_by": _CERTIFICATES,
        "cert_match_skip_invalid": _CERTIFICATES,
        "ca_certs_match": _CERTIFICATES,
    },
    "jetstream": {
        **dict.fromkeys(
            ("cipher", "key", "ek", "encryption_key", "prev_key", "prev_ek", "prev_encryption_key", "tpm"), _ENCRYPTION
        ),
    },
    "jetstream.limits": {},
    "account": {
        "mappings": "map subjects with a subject transform of a stream",
        "maps": "map subjects with a subject transform of a stream",
    },
    "account.limits": {},
    "account.jetstream": {},
    "export": {"latency": "latencies of services are not measured"},
    "import": {},
    "websocket": {},
}

IGNORED: Final[dict[str, dict[str, str]]] = {
    "resolver": dict.fromkeys(
        ("limit", "ttl", "interval", "timeout"),
        "its folder has all accounts: none are fetched from other servers, or forgotten",
    ),
    "": {
        **dict.fromkeys(
            (
                "debug",
                "trace",
                "trace_verbose",
                "trace_headers",
                "logtime_utc",
                "logfile",
                "log_file",
                "logfile_size_limit",
                "log_size_limit",
                "logfile_max_num",
                "log_max_num",
                "syslog",
                "remote_syslog",
                "max_traced_msg_len",
            ),
            _LOG,
        ),
        "logtime": _LOG,
        "disable_sublist_cache": "the router always remembers matches",
        "no_sublist_cache": "the router always remembers matches",
        "prof_port": "profile the Python process instead",
        "prof_block_rate": "profile the Python process instead",
        "connect_error_reports": _ONE_SERVER,
        "reconnect_error_reports": _ONE_SERVER,
        "no_fast_producer_stall": "producers are slowed down by their sockets alone",
        "ocsp_cache": _OCSP,
        "feature_flags": "they are nats-server's own",
        "write_timeout": "a client that does not read is disconnected",
    },
    "jetstream": {
        "strict": "requests are always checked strictly",
        "unique_tag": _ONE_SERVER,
        "extension_hint": _ONE_SERVER,
        "max_outstanding_catchup": _ONE_SERVER,
        "meta_compact": _ONE_SERVER,
        "meta_compact_size": _ONE_SERVER,
        "max_buffered_size": _TUNING,
        "max_buffered_msgs": _TUNING,
        "request_queue_limit": _TUNING,
        "info_queue_limit": _TUNING,
        "sync_interval": _SYNC,
        "sync": _SYNC,
    },
    "jetstream.limits": {"max_ha_assets": _ONE_SERVER, "batch": _TUNING},
    "account.limits": {"max_leafnodes": _ONE_SERVER, "max_leafs": _ONE_SERVER},
    "account.jetstream": {"cluster_traffic": _ONE_SERVER},
}

# What leaves nats-server, too, as it is.
OFF: Final[tuple[object, ...]] = (False, 0, "")

REFUSED_FLAGS: Final[dict[str, str]] = {
    "routes": _ONE_SERVER,
    "cluster": _ONE_SERVER,
    "cluster_name": _ONE_SERVER,
    "cluster_listen": _ONE_SERVER,
    "cluster_advertise": _ONE_SERVER,
    "no_advertise": _ONE_SERVER,
    "connect_retries": _ONE_SERVER,
    "sl": "send the signal with kill: SIGHUP reloads, SIGUSR2 is lame duck mode, SIGTERM stops",
    "signal": "send the signal with kill: SIGHUP reloads, SIGUSR2 is lame duck mode, SIGTERM stops",
}
IGNORED_FLAGS: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "l",
            "log",
            "T",
            "logtime",
            "logtime_utc",
            "s",
            "syslog",
            "r",
            "remote_syslog",
            "D",
            "debug",
            "V",
            "trace",
            "VV",
            "DV",
            "DVV",
            "log_size_limit",
            "max_traced_msg_len",
        ),
        _LOG,
    ),
    "profile": "profile the Python process instead",
}
