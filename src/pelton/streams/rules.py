"""Which stream configurations are valid. Pure; for the changes that are allowed, see ``changes.py``.

Codes and texts are nats-server's if it has them (10052 carries a free text). A setting that this engine does not
support yet is refused by name, not ignored: an accepted setting takes effect (except ``storage``: a file keeps all its
streams).

**Which time settings can be combined (ADR-43, ADR-48, ADR-51). Pure.** Texts and codes are nats-server's.

**Which changes of a stream's configuration are allowed, and the configuration that results. Pure.** Most settings can
change freely. Some are fixed when the stream is created, and some can be switched on but never off again, because
others may rely on what the stream has promised (nothing is deleted, messages may carry a TTL).

**Configurations of streams and consumers as they are stored: JSON that carries its own checksum.** A flipped bit may
leave valid JSON that says something else, so ``crc``, the last field, is the CRC-32 of the JSON without it.
Configurations that an earlier version stored have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec

from pelton.api import ApiError, ConfigError, ConsumerConfig, StreamConfig, api_error
from pelton.api.build import STREAM_NAME_RULE
from pelton.api.config import DUPLICATE_WINDOW, sealed_stream
from pelton.api.times import SECOND, dec_hook, enc_hook
from pelton.storage import DamagedRowError, blob
from pelton.streams.counters import check_counting
from pelton.streams.mappings import check_mappings
from pelton.subjects import clash_within, is_filter, is_subset, overlaps

_NO_ROLLUPS: Final = "cannot be set if roll-ups are disabled"


def _invalid(text: str, stream: str) -> ApiError:
    return api_error("JSStreamInvalidConfigF", stream=stream, err=text)


def check_time(config: StreamConfig) -> None:
    """Raise ApiError if a resolved configuration contradicts itself."""
    if config.subject_delete_marker_ttl.ns < 0:
        raise _invalid("subject delete marker TTL must not be negative", config.name)
    if 0 < config.subject_delete_marker_ttl.ns < SECOND:
        raise _invalid("subject delete marker TTL must be at least 1 second", config.name)
    if config.mirror is not None and config.subject_delete_marker_ttl:
        raise _invalid("subject delete markers forbidden on mirrors", config.name)
    if not config.allow_msg_schedules:
        return
    if config.discard == "new":
        raise _invalid("message scheduling cannot use discard new", config.name)
    if config.mirror is not None:
        raise api_error("JSMirrorWithMsgSchedulesErr", stream=config.name)
    if config.sources:
        raise api_error("JSSourceWithMsgSchedulesErr", stream=config.name)


def check_time_pedantic(config: StreamConfig) -> None:
    """Raise ApiError if a requested configuration leaves something to be completed."""
    if config.mirror is None and not config.duplicate_window.ns and 0 < config.max_age.ns < DUPLICATE_WINDOW.ns:
        text = "duplicate window cannot be bigger than max age"
        raise api_error("JSPedanticErrF", stream=config.name, err=text)
    if config.subject_delete_marker_ttl.ns >= SECOND:
        if not config.allow_msg_ttl:
            raise _invalid("subject delete marker cannot be set if message TTLs are disabled", config.name)
        if not config.allow_rollup_hdrs:
            raise _invalid(f"subject delete marker {_NO_ROLLUPS}", config.name)
    if config.allow_msg_schedules and config.discard != "new" and not config.allow_rollup_hdrs:
        raise _invalid(f"message scheduling {_NO_ROLLUPS}", config.name)


_NAME_LIMIT: Final = 255
_NOT_IN_NAMES: Final = frozenset(" \t\r\n.*>/\\")
_DESCRIPTION_LIMIT: Final = 4096
_METADATA_LIMIT: Final = 128 * 1024
_REPLICAS_LIMIT: Final = 5
_LEAST_TIME: Final = 100_000_000
_LAST_SEQUENCE: Final = (1 << 63) - 1
_API_SPACES: Final = ("$JS.>", "$JSC.>", "$NRG.>")
_API_EVENTS: Final = "$JS.EVENT.>"
_SYSTEM_SPACE: Final = "$SYS.>"
_ACCOUNT_EVENTS: Final = "$SYS.ACCOUNT.>"


def invalid(text: str, stream: str) -> ApiError:
    """Return the error for a configuration that contradicts itself (10052)."""
    return api_error("JSStreamInvalidConfigF", stream=stream, err=text)


def check_creation(config: StreamConfig) -> None:
    """Raise ApiError for what a server refuses before it looks at its limits."""
    if any(char in config.name for char in "/\\"):
        raise api_error("JSStreamNameContainsPathSeparatorsErr", stream=config.name)
    if config.sealed:
        raise invalid("stream configuration for create can not be sealed", config.name)
    if config.mirror_direct and config.mirror is None:
        raise invalid("stream has no mirror but does have mirror direct", config.name)


def check_new_stream(config: StreamConfig) -> None:
    """Raise ApiError or ConfigError if no stream can be created from a resolved configuration."""
    check_creation(config)
    check_stream(config)
    if config.first_seq < 0:
        raise api_error("JSInvalidJSONErr", stream=config.name, err=f"first_seq is {config.first_seq}, below 0")
    if config.first_seq > _LAST_SEQUENCE:
        raise invalid(f"first_seq is {config.first_seq}, the highest possible sequence is 2**63 - 1", config.name)


def check_stream(config: StreamConfig) -> None:
    """Raise ApiError or ConfigError if a resolved configuration is invalid."""
    _check_name(config.name)
    _check_texts(config)
    _check_replicas(config)
    if config.allow_msg_counter and (reason := check_counting(config)):
        raise invalid(reason, config.name)
    _check_times(config)
    _check_policies(config)
    check_time(config)
    _check_subjects(config)
    check_mappings(config)
    if config.placement is not None and config.placement.preferred:
        raise invalid("preferred server not permitted in placement", config.name)


def check_copies(config: StreamConfig) -> None:
    """Raise ConfigError for more than one replica; what a server refuses in any case is checked before."""
    if config.num_replicas > 1:
        raise ConfigError(
            f"stream {config.name!r}: num_replicas is {config.num_replicas}, but an embedded store keeps one copy: "
            "leave it at 1 here, replication lives on a NATS cluster (pelton.open('nats://...'))"
        )


def _check_texts(config: StreamConfig) -> None:
    if len(config.description.encode()) > _DESCRIPTION_LIMIT:
        raise invalid(f"stream description is too long, maximum allowed is {_DESCRIPTION_LIMIT}", config.name)
    if sum(len(key.encode()) + len(value.encode()) for key, value in config.metadata.items()) > _METADATA_LIMIT:
        raise invalid(f"stream metadata exceeds maximum size of {_METADATA_LIMIT} bytes", config.name)


def _check_times(config: StreamConfig) -> None:
    if config.max_age.ns < 0:
        raise invalid("max age can not be negative", config.name)
    if config.max_age and config.max_age.ns < _LEAST_TIME:
        raise invalid("max age needs to be >= 100ms", config.name)
    if config.duplicate_window.ns < 0:
        raise invalid("duplicates window can not be negative", config.name)
    if config.max_age and config.duplicate_window > config.max_age:
        raise invalid("duplicates window can not be larger then max age", config.name)
    if config.duplicate_window and config.duplicate_window.ns < _LEAST_TIME:
        raise invalid("duplicates window needs to be >= 100ms", config.name)


def _check_policies(config: StreamConfig) -> None:
    if config.deny_purge and config.allow_rollup_hdrs:
        raise invalid("roll-ups require the purge permission", config.name)
    if config.discard_new_per_subject:
        if config.discard != "new":
            raise invalid("discard new per subject requires discard new policy to be set", config.name)
        if config.max_msgs_per_subject <= 0:
            raise invalid("discard new per subject requires max msgs per subject > 0", config.name)
    if config.persist_mode == "async":
        if config.storage != "file":
            raise invalid("async persist mode is only supported on file storage", config.name)
        if config.num_replicas > 1:
            raise invalid("async persist mode is not supported on replicated streams", config.name)
        if config.allow_atomic:
            raise invalid("async persist mode is not supported with atomic batch publish", config.name)


def _check_name(name: str) -> None:
    if not name or any(char in _NOT_IN_NAMES for char in name) or not name.isprintable():
        raise invalid(STREAM_NAME_RULE, name)
    if len(name.encode()) > _NAME_LIMIT:
        raise invalid(f"stream name is too long, maximum allowed is {_NAME_LIMIT}", name)


def _check_replicas(config: StreamConfig) -> None:
    if config.num_replicas < 0:
        raise api_error("JSReplicasCountCannotBeNegative", stream=config.name)
    if config.num_replicas > _REPLICAS_LIMIT:
        raise invalid(f"maximum replicas is {_REPLICAS_LIMIT}", config.name)


def _check_subjects(config: StreamConfig) -> None:
    # The first mistake is told, so what stands behind an invalid subject is not looked at.
    faults = ((index, fault) for index, text in enumerate(config.subjects) if (fault := _fault(text, config)))
    index, fault = next(faults, (len(config.subjects), ""))
    if found := clash_within(config.subjects[:index]):
        raise invalid(f'subject "{found[1]}" overlaps with "{found[0]}"', config.name)
    if fault:
        raise invalid(fault, config.name)


def _fault(subject: str, config: StreamConfig) -> str:
    """Return why no stream may take a subject, or an empty text.

    Refused are those of API requests and of the server's own messages; its events may be captured.
    """
    if not is_filter(subject):
        return "invalid subject"
    if config.no_ack:
        return "capturing all subjects requires replicas of 1" if subject == ">" and config.num_replicas > 1 else ""
    if subject[0] not in "$*>":
        return ""
    if subject == ">":
        return "capturing all subjects requires no-ack to be true"
    if any(overlaps(subject, space) for space in _API_SPACES) and not is_subset(subject, _API_EVENTS):
        return "subjects that overlap with jetstream api require no-ack to be true"
    if overlaps(subject, _SYSTEM_SPACE) and not is_subset(subject, _ACCOUNT_EVENTS):
        return "subjects that overlap with system api require no-ack to be true"
    return ""


_UPDATE: Final = "stream configuration update can not"

_FIXED: Final = {
    "storage": f"{_UPDATE} change storage type",
    "persist_mode": f"{_UPDATE} change persist mode",
    "allow_msg_counter": f"{_UPDATE} change message counter setting",
}
_ONE_WAY: Final = {
    "sealed": f"{_UPDATE} unseal a sealed stream",
    "deny_delete": f"{_UPDATE} cancel deny message deletes",
    "deny_purge": f"{_UPDATE} cancel deny purge",
    "allow_msg_ttl": "message TTL status can not be disabled",
    "allow_msg_schedules": "message schedules can not be disabled",
}


def changed_stream(old: StreamConfig, new: StreamConfig) -> StreamConfig:
    """Return the configuration that results from an update of ``old`` to the resolved and checked ``new``.

    Raises ApiError if the change is not allowed.
    """
    if old.retention != new.retention and "workqueue" in (old.retention, new.retention):
        raise invalid(f"{_UPDATE} change retention policy to/from workqueue", new.name)
    for field, text in _FIXED.items():
        if getattr(old, field) != getattr(new, field):
            raise invalid(text, new.name)
    for field, text in _ONE_WAY.items():
        if getattr(old, field) and not getattr(new, field):
            raise invalid(text, new.name)
    return sealed_stream(new) if new.sealed else new


def check_consumers(old: StreamConfig, new: StreamConfig, consumers: Iterable[ConsumerConfig]) -> None:
    """Raise ApiError (10069) if consumers of the stream exceed changed ``consumer_limits``."""
    if old.consumer_limits == new.consumer_limits:
        return
    limits = new.consumer_limits
    beyond = [
        consumer.name
        for consumer in consumers
        if 0 < limits.inactive_threshold.ns < consumer.inactive_threshold.ns
        or 0 < limits.max_ack_pending < consumer.max_ack_pending
    ]
    if beyond:
        raise api_error(
            "JSStreamUpdateErrF", stream=new.name, err=f"change to limits violates consumers: {', '.join(beyond)}"
        )


C = TypeVar("C", StreamConfig, ConsumerConfig)

_encode: Final = msgspec.json.Encoder(enc_hook=enc_hook).encode
_decoders: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind, dec_hook=dec_hook) for kind in (StreamConfig, ConsumerConfig)
}
_BEGIN: Final = b',"crc":"'
_SEAL: Final = len(_BEGIN) + len('00000000"}')


def encode_config(config: StreamConfig | ConsumerConfig) -> bytes:
    """Return a configuration as it is stored."""
    return _seal(_encode(config))


def decode_config(kind: type[C], stored: object) -> C:
    """Return a stored configuration. Raises DamagedRowError."""
    raw = blob(stored)
    _is_sealed(raw)
    try:
        config: C = _decoders[kind].decode(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedRowError(f"a configuration cannot be decoded ({error})") from error
    return config


def check_config(kind: type[C], stored: object) -> bytes:
    """Return a stored configuration that is what was written. Raises DamagedRowError."""
    raw = blob(stored)
    if not _is_sealed(raw):
        decode_config(kind, raw)
    return raw


def _is_sealed(raw: bytes) -> bool:
    """Return whether a configuration has a checksum, as those have that were written lately. Raises DamagedRowError."""
    is_sealed = raw.startswith(_BEGIN, -_SEAL)
    if is_sealed and not raw.endswith(b'%08x"}' % crc32(b"}", crc32(memoryview(raw)[:-_SEAL]))):
        raise DamagedRowError("a configuration does not match its checksum")
    return is_sealed


def mended_config(kind: type[C], stored: object) -> C | None:
    """Return what a stored configuration was before one of its bytes was changed; None if that is unknown.

    A CRC-32 tells which byte, and how: no two changes of one byte give the same sum.
    """
    raw = bytearray(blob(stored))
    for place, byte in enumerate(raw):
        for other in range(256):
            raw[place] = other
            if _seal(bytes(raw[:-_SEAL]) + b"}") == raw:
                return decode_config(kind, bytes(raw))
        raw[place] = byte
    return None


def _seal(plain: bytes) -> bytes:
    return b'%b%b%08x"}' % (plain[:-1], _BEGIN, crc32(plain))
