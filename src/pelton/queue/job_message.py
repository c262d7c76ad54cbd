"""The message that puts a job into a queue: its typed arguments, checked and encoded, and its place there. Pure.

**Arguments travel as a JSON object by parameter name**, so that a refactored function still reads old jobs. Types that
JSON has no form for are text: bytes, dates, UUIDs, decimals, and every key of an object. If text is declared, such a
value would pass every check, and decode to a different one: so it is refused. What a codec of the program's own has
encoded stands in the JSON as base64, so that names and options are read by every program, with the codec or without.

**Places are how jobs that are scheduled or unique are found, and never stored twice.** Such a job has a *leaf*, one
token at the end of its subject. While it waits for its time it is a schedule, at another subject with the same leaf;
both match one filter, so the condition that nothing is stored under that filter makes a job unique from the moment it
is enqueued until it has ended, because the queue's stream then removes it.

The message of a scheduled job is stored again when it falls due, with another sequence, so its id is not its sequence:
``leaf[-number][@key]``, with a number that no other job of the leaf has, and its key or the token of its tenant, from
which its subjects follow. So what is unique is unique for its tenant.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, get_type_hints
from uuid import UUID

import msgspec

from pelton.api import ConfigError, JobArgumentsError, JobResultError, Outgoing, headers
from pelton.api.json_values import UNREADABLE, to_json
from pelton.api.times import format_duration, rfc3339
from pelton.queue.model.naming import as_token, encode_tenant, key_part, of_token
from pelton.queue.model.options import PLAIN, JobOptions, due_time
from pelton.queue.model.records import job_id_in
from pelton.queue.model.states import NOTHING, Envelope, FlowPlace, encode_envelope

if TYPE_CHECKING:
    from pelton.api import StoredMessage
    from pelton.queue.model.naming import QueueNames


class JobCodec(Protocol):
    """Turns values into bytes and back, for arguments and results: ``pelton.Jobs(codec=...)``."""

    def encode(self, value: Any, /) -> bytes:
        """Return a value as bytes; may raise any error."""

    def decode(self, data: bytes, kind: Any, /) -> Any:
        """Return the value of bytes; ``kind`` is the type that the function declares, Any if it declares none.

        Raise an error if the value is of another type.
        """


def checked_codec(codec: object) -> JobCodec | None:
    """Return a codec if it has both methods. Raises ConfigError."""
    if codec is None:
        return None
    for name in ("encode", "decode"):
        if not callable(getattr(codec, name, None)):
            raise ConfigError(f"codec is {codec!r}: give an object with encode(value) and decode(data, type)")
    return codec  # type: ignore[return-value]  # it was looked at


def encoded_with(codec: JobCodec, value: object) -> bytes:
    """Return a value as a JSON text that holds what the codec makes of it. Raises what the codec raises."""
    data = codec.encode(value)
    if not isinstance(data, bytes):
        raise TypeError(f"{codec!r} encoded to {type(data).__name__}, not to bytes")
    return msgspec.json.encode(data)


def decoded_with(codec: JobCodec, encoded: msgspec.Raw | bytes, kind: Any) -> Any:
    """Return a value that :func:`encoded_with` has encoded. Raises what the codec raises."""
    return codec.decode(msgspec.json.decode(encoded, type=bytes), kind)


def encode_each(codec: JobCodec, named: dict[str, Any], kinds: dict[str, Any]) -> bytes:
    """Return arguments as a JSON object, each checked by decoding it again. Raises what the codec raises."""
    encoded = {name: msgspec.Raw(encoded_with(codec, value)) for name, value in named.items()}
    for name, raw in encoded.items():
        decoded_with(codec, raw, kinds.get(name, Any))
    return msgspec.json.encode(encoded)


def decode_each(
    codec: JobCodec, raw: msgspec.Raw, kinds: dict[str, Any], defaults: dict[str, Callable[[], Any]]
) -> dict[str, Any]:
    """Return arguments by name. Raises TypeError for one too many or too few, and what the codec raises."""
    given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    if unknown := given.keys() - kinds.keys():
        raise TypeError(f"there is no parameter {min(unknown)!r}")
    if missing := kinds.keys() - given.keys() - defaults.keys():
        raise TypeError(f"there is no argument for {min(missing)!r}")
    return {
        name: decoded_with(codec, given[name], kind) if name in given else defaults[name]()
        for name, kind in kinds.items()
    }


# Text for bytes would be read as base64. For the others, text is their own form: 2026-01-02 for a date.
_BYTES: Final = (bytes, bytearray)
_WRITTEN_AS_TEXT: Final = (*_BYTES, datetime, date, time, timedelta, UUID, Decimal)


def bent(value: object, kind: Any) -> str:
    """Return why a value that JSON can hold would decode to a different one under the type ``kind``, or empty."""
    try:
        msgspec.convert(msgspec.to_builtins(value, builtin_types=_WRITTEN_AS_TEXT), kind, builtin_types=_BYTES)
    except msgspec.ValidationError as error:
        return str(error)
    except TypeError:
        # Already JSON: msgspec.Raw.
        pass
    return ""


def encoded_result(job: str, result: object) -> msgspec.Raw:
    """Return a job's result as JSON. Raises JobResultError."""
    if result is None:
        return NOTHING
    try:
        return msgspec.Raw(to_json(result))
    except Exception as error:  # a result's own code may run, and raise anything
        raise JobResultError(job, f"{type(error).__name__}: {error}") from error


class ResultCodec:
    """Results of one job, whose function declares ``kind``; Any if nothing is declared."""

    def __init__(self, job: str, kind: Any, codec: JobCodec | None = None) -> None:
        self._job = job
        self._codec = codec
        self._kind = kind
        try:
            self._decode = None if kind in (Any, object) else msgspec.json.Decoder(kind).decode
        except TypeError:
            # A type that JSON does not know; the returned value may still be storable.
            self._decode = None

    def encode(self, result: object) -> msgspec.Raw:
        """Return a result as JSON. Raises JobResultError if JSON cannot hold it, or would change it."""
        if self._codec is not None:
            try:
                return NOTHING if result is None else msgspec.Raw(encoded_with(self._codec, result))
            except Exception as error:  # a codec is the program's own
                raise JobResultError(self._job, f"{type(error).__name__}: {error}") from error
        encoded = encoded_result(self._job, result)
        is_plain = type(result) is self._kind and self._kind in (str, int, float, bool, type(None))
        if self._decode is None or is_plain or not (why := bent(result, self._kind)):
            return encoded
        try:
            self._decode(encoded)
        except msgspec.DecodeError:
            # The annotation is of another type altogether, so the two cannot be confused.
            return encoded
        raise JobResultError(self._job, why)

    def decode(self, encoded: msgspec.Raw | bytes) -> object:
        """Return a result as its declared type. Raises JobResultError if it is of another one."""
        if self._codec is not None and bytes(encoded) != bytes(NOTHING):
            try:
                return decoded_with(self._codec, encoded, self._kind)
            except Exception as error:  # a codec is the program's own
                raise JobResultError(self._job, f"{type(error).__name__}: {error}") from error
        if self._decode is None:
            return msgspec.json.decode(encoded)
        try:
            return self._decode(encoded)
        except msgspec.ValidationError as error:
            raise JobResultError(self._job, str(error)) from error


T = TypeVar("T")

_OPTIONS: Final = frozenset({"key", "idempotency_key"})


class RunContext:
    """What the worker, and not the caller, passes to a parameter that is annotated with it; ``JobContext`` is one."""

    __slots__ = ()


class JobArguments:
    """The arguments of one job's function. ``context`` names the parameter that the worker fills, or is empty.

    Raises ConfigError for a function whose arguments cannot travel.
    """

    def __init__(self, job: str, function: Callable[..., Any], codec: JobCodec | None = None) -> None:
        self._job = job
        self.codec = codec
        hints = _hints(function, job)
        self.context: str = _context_parameter(hints, job)
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.name != self.context]
        self._names = tuple(parameter.name for parameter in parameters)
        _check(job, parameters)
        self._kinds = {name: hints.get(name, Any) for name in self._names}
        self._defaults: dict[str, Callable[[], Any]] = {
            p.name: partial(_same, p.default) for p in parameters if p.default is not p.empty
        }
        self._struct = _struct(job, self._kinds if codec is None else {}, self._defaults)
        # Of some of the arguments alone, by their names.
        self._partial: dict[tuple[str, ...], type[msgspec.Struct]] = {}
        self._decode = msgspec.json.Decoder(self._struct).decode
        self._signature = signature.replace(parameters=parameters)
        self._positional = all(p.kind is not p.KEYWORD_ONLY for p in parameters)
        self.results: ResultCodec = ResultCodec(job, hints.get("return", Any), codec)

    def encode(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Return arguments as JSON, checked against the function's annotations. Raises JobArgumentsError."""
        return self._check_and_encode(self._by_name(args, kwargs), self._struct, self._decode)

    def encode_known(
        self, args: Sequence[Any], kwargs: dict[str, Any], find: Callable[[Any], T | None]
    ) -> tuple[bytes, dict[str, T]]:
        """Return the arguments that are known now as JSON, and by name what ``find`` returns for those that are not.

        Raises JobArgumentsError.
        """
        named = self._by_name(args, kwargs)
        later = {name: later_one for name, value in named.items() if (later_one := find(value)) is not None}
        if not later:
            return self._check_and_encode(named, self._struct, self._decode), later
        known = {name: value for name, value in named.items() if name not in later}
        names = tuple(known)
        if (struct := self._partial.get(names)) is None:
            kinds = {name: self._kinds[name] for name in names} if self.codec is None else {}
            struct = self._partial[names] = _struct(self._job, kinds, {})
        return self._check_and_encode(known, struct, msgspec.json.Decoder(struct).decode), later

    def _check_and_encode(
        self, named: dict[str, Any], struct: type[msgspec.Struct], decode: Callable[[bytes], msgspec.Struct]
    ) -> bytes:
        if self.codec is not None:
            try:
                return encode_each(self.codec, named, self._kinds)
            except Exception as error:  # a codec is the program's own
                raise JobArgumentsError(self._job, f"{type(error).__name__}: {error}") from error
        try:
            encoded = _encode(named)
            if b"null" in encoded:
                encoded = to_json(named)
            decoded = decode(encoded)
            for name, value in named.items():
                if getattr(decoded, name) != value and (why := bent(named, struct)):
                    raise JobArgumentsError(self._job, why)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise JobArgumentsError(self._job, str(error)) from None
        return encoded

    def _by_name(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not kwargs and self._positional and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise JobArgumentsError(self._job, str(error)) from None

    def decode(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Return the arguments of a stored job by name. Raises JobArgumentsError."""
        if self.codec is not None:
            try:
                return decode_each(self.codec, raw, self._kinds, self._defaults)
            except Exception as error:  # a codec is the program's own
                raise JobArgumentsError(self._job, f"{type(error).__name__}: {error}", is_stored=True) from error
        try:
            decoded = self._decode(raw)
        except UNREADABLE as error:
            raise JobArgumentsError(self._job, str(error), is_stored=True) from None
        return msgspec.structs.asdict(decoded)


def _context_parameter(hints: dict[str, Any], job: str) -> str:
    contexts = [name for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, RunContext)]
    if len(contexts) > 1:
        raise ConfigError(f"job {job!r}: only one parameter can be the JobContext")
    return contexts[0] if contexts else ""


def _hints(function: Callable[..., Any], job: str) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(f"job {job!r}: its annotations can't be read ({error})") from None


def _check(job: str, parameters: Sequence[inspect.Parameter]) -> None:
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"job {job!r}: {parameter.name!r} can only be given by position; arguments travel by name"
            )
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"job {job!r}: '*{parameter.name}' has no fixed name; give each argument a parameter")
        if parameter.name in _OPTIONS:
            raise ConfigError(f"job {job!r}: {parameter.name!r} is an option of enqueue; rename the parameter")


def _struct(job: str, kinds: dict[str, Any], defaults: dict[str, Callable[[], Any]]) -> type[msgspec.Struct]:
    fields: list[Any] = [
        # A factory, because msgspec refuses mutable defaults; the value itself is only ever encoded or read.
        (name, kind, msgspec.field(default_factory=defaults[name])) if name in defaults else (name, kind)
        for name, kind in kinds.items()
    ]
    try:
        struct = msgspec.defstruct(f"{job}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.Decoder(struct)
    except TypeError as error:
        raise ConfigError(f"job {job!r}: a parameter's type can't be stored as JSON ({error})") from None
    return struct


def _same(value: T) -> T:
    return value


_envelope: Final = msgspec.json.Decoder(Envelope).decode
_encode: Final = msgspec.json.Encoder().encode
_NO_HEADERS: Final = headers.encode({})
# Stands for a leaf: no subject has it.
_LEAF: Final = "LEAF LEAF"
# So many bytes of a block are before its first header.
_OPENING: Final = len("NATS/1.0\r\n")


class JobMessage:
    """How jobs of one name are stored in a queue; ``exclusive`` is the queue's setting."""

    def __init__(self, names: QueueNames, job: str, *, exclusive: bool) -> None:
        self._names = names
        self.job = job
        self._exclusive = exclusive
        # Mostly, the options of many jobs are the same.
        self._checked: JobOptions | None = None
        self._many: UniqueMessages | None = None
        self._at: tuple[int, str] = (0, "")

    def message(
        self,
        args: bytes,
        options: JobOptions = PLAIN,
        now: int = 0,
        new_id: Callable[[], str] = str,
        meta: dict[str, str] | None = None,
    ) -> Outgoing:
        """Return the message of one job with arguments as a JSON object by name.

        ``now`` is in wall nanoseconds, ``new_id`` gives an id that nobody has. Raises ConfigError.
        """
        if options is not self._checked:
            self.check(options)
            self._checked = options
            self._many = (
                UniqueMessages(self._names, self.job, options, self._key(options))
                if options.is_unique and not options.is_timed
                else None
            )
        if self._many is not None:
            return self._many.message(args, meta)
        envelope, key = self._envelope(args, options, now, meta), self._key(options)
        if not options.is_plain:
            fresh = new_id() if options.is_later else ""
            return self._at_place(envelope, key, options, place_of(self.job, args, options, key, fresh))
        # Per job name: another job of the queue may work on the same thing.
        msg_id = f"{self.job}/{options.idempotency_key}"
        block = headers.encode({headers.MSG_ID: msg_id}) if options.idempotency_key else None
        return Outgoing(self._subject(options), _encode(envelope), block)

    def _subject(self, options: JobOptions) -> str:
        if options.tenant:
            return self._names.tenant_subject(encode_tenant(options.tenant), options.priority)
        return self._names.job_subject(options.key if self._exclusive else "", options.priority)

    def check(self, options: JobOptions) -> None:
        """Raise ConfigError for options that contradict each other, or that the queue can't keep."""
        options.check(f"job {self.job!r}")
        if options.tenant and options.key and self._exclusive:
            raise ConfigError(
                f"job {self.job!r}: tenant is {options.tenant!r}, but in an exclusive queue the keys themselves take "
                "turns: leave tenant or key out, or use a queue that is not exclusive"
            )

    def of_flow(
        self, args: bytes, options: JobOptions, now: int, meta: dict[str, str], place: FlowPlace, generation: int
    ) -> Outgoing:
        """Return the message of a node of a flow, which is refused while its job is unfinished."""
        spot = flow_place(place.flow, place.node, generation, key := self._key(options))
        envelope = msgspec.structs.replace(self._envelope(args, options, now, meta), flow=place)
        return self._at_place(
            envelope, key, msgspec.structs.replace(options, idempotency_key=f"flow-{spot.leaf}"), spot
        )

    def _envelope(self, args: bytes, options: JobOptions, now: int, meta: dict[str, str] | None) -> Envelope:
        due = due_time(options, now)
        expires = 0 if options.ttl is None else max(due, now) + int(options.ttl * 1e9)
        kept = 0 if options.unique_for is None else now + int(options.unique_for * 1e9)
        return Envelope(
            self.job,
            msgspec.Raw(args),
            options.key,
            due=due,
            expires=expires,
            unique_until=kept,
            meta=meta or {},
            priority=options.priority,
            tenant=options.tenant,
        )

    def _key(self, options: JobOptions) -> str:
        """Return the key as a part of the job's subject, or what takes its place: the tenant."""
        return key_part(options.key, options.tenant, exclusive=self._exclusive)

    def replacing(self, message: Outgoing, scheduled: StoredMessage) -> Outgoing:
        """Return a unique job's message, as it replaces one that is scheduled, which keeps its id.

        It is refused if that one has changed, or has fallen due.
        """
        envelope = msgspec.structs.replace(_envelope(message.data), id=job_id_in(scheduled.data, scheduled.seq))
        return self.following(Outgoing(message.subject, _encode(envelope), message.headers), scheduled.seq)

    def following(self, message: Outgoing, seq: int) -> Outgoing:
        """Return a unique job's message, as it is stored beside one that has started: it must be the last there."""
        assert message.headers is not None, "unique jobs have conditions"
        block = headers.with_header(message.headers, headers.EXPECTED_LAST_SUBJECT_SEQUENCE, str(seq))
        return Outgoing(message.subject, message.data, block)

    def to_move(self, envelope: Envelope, queue: str, job_id: str, leaf: str, delay: float | None) -> Outgoing:
        """Return the message of a job of another ``queue``, which is refused while the job is here and unfinished.

        ``delay``: in how many seconds it is due if it was delayed.
        """
        if self._exclusive and envelope.key:
            # Here, its key takes turns.
            envelope = msgspec.structs.replace(envelope, tenant="")
        key = key_part(envelope.key, envelope.tenant, exclusive=self._exclusive)
        # Always the same place. A unique job keeps its leaf.
        moved, is_unique = _digest("moved", queue, job_id), leaf.startswith(_UNIQUE)
        leaf = leaf if is_unique else _MOVED + moved
        place = Place(leaf, _id(f"{leaf}-{moved}" if is_unique else leaf, key), is_unique=True)
        options = JobOptions(idempotency_key=f"move-{queue}-{job_id}", delay=delay)
        return self._at_place(envelope, key, options, place)

    def redriven(self, envelope: Envelope) -> Outgoing:
        """Return the message of a failed job that is to run again; ``redriven_from`` is its id.

        It has an id and a place that follow from that one, so the message is refused while the job is unfinished.
        """
        key = key_part(envelope.key, envelope.tenant, exclusive=self._exclusive)
        # Always the same, so that repeating it stores nothing.
        leaf = _REDRIVEN + _digest("redriven", envelope.redriven_from)
        place = Place(leaf, _id(leaf, key), is_unique=True)
        # Its time, its time to live, and how long it was unique, were those of the job that failed.
        fresh = msgspec.structs.replace(envelope, due=0, expires=0, unique_until=0)
        return self._at_place(fresh, key, JobOptions(idempotency_key=f"redrive-{envelope.redriven_from}"), place)

    def _at_place(self, envelope: Envelope, key: str, options: JobOptions, place: Place) -> Outgoing:
        names = self._names
        subject = target = names.place(key, place.leaf, envelope.priority)
        # Subjects hold no line breaks; of what becomes a header, only an idempotency key is checked for them.
        fields = ""
        if envelope.due:
            subject = names.later(key, place.leaf)
            at = f"@at {self._time_text(envelope.due)}"
            fields = f"{headers.SCHEDULE}: {at}\r\n{headers.SCHEDULE_TARGET}: {target}\r\n"
            if options.delay is not None:
                fields += f"{headers.DELAY}: {format_duration(int(options.delay * 1e9))}\r\n"
        if place.is_unique:
            where = names.anywhere(key, place.leaf)
            fields += (
                f"{headers.EXPECTED_LAST_SUBJECT_SEQUENCE}: 0\r\n"
                f"{headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT}: {where}\r\n"
            )
        block = _NO_HEADERS
        if options.idempotency_key:
            block = headers.encode({headers.MSG_ID: f"{self.job}/{options.idempotency_key}"})
        if fields:
            block = b"%b%b%b" % (block[:_OPENING], fields.encode(), block[_OPENING:])
        if place.id != envelope.id:
            envelope = msgspec.structs.replace(envelope, id=place.id)
        return Outgoing(subject, encode_envelope(envelope), block if block != _NO_HEADERS else None)

    def _time_text(self, due: int) -> str:
        known, text = self._at
        if known != due:
            text = rfc3339(due)
            self._at = due, text
        return text


class UniqueMessages:
    """The messages of many unique jobs with the same options and no times: each is its leaf, and what all share.

    They are those that :class:`JobMessage` makes of such jobs one by one, in less time.
    """

    def __init__(self, names: QueueNames, job: str, options: JobOptions, key: str) -> None:
        self._job = job
        self._options = options
        self._before, _, self._after = names.place(key, _LEAF, options.priority).partition(_LEAF)
        block = headers.encode(
            {
                headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0",
                headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: names.anywhere(key, _LEAF),
            }
        )
        self._block_before, _, self._block_after = block.partition(_LEAF.encode())

    def message(self, args: bytes, meta: dict[str, str] | None) -> Outgoing:
        """Return the message of a job with arguments as a JSON object by name."""
        options, leaf = self._options, unique_leaf(self._job, args, self._options)
        envelope = Envelope(
            self._job, msgspec.Raw(args), options.key, meta=meta or {}, priority=options.priority, tenant=options.tenant
        )
        block = b"%b%b%b" % (self._block_before, leaf.encode(), self._block_after)
        return Outgoing(f"{self._before}{leaf}{self._after}", _encode(envelope), block)


# --- places

_FRESH: Final = "s"
_UNIQUE: Final = "u"
_REDRIVEN: Final = "r"
_CRON: Final = "c"
_FLOW: Final = "f"
_MOVED: Final = "m"


class Place(NamedTuple):
    """Where a job is kept: its leaf, its id (empty: the sequence of its message), and whether no other may be there."""

    leaf: str
    id: str
    is_unique: bool


def place_of(job: str, args: bytes, options: JobOptions, key: str, new_id: str) -> Place:
    """Return the place of a job with options; ``key`` is the part of its subject, ``new_id`` an id nobody has."""
    if options.is_unique:
        leaf = unique_leaf(job, args, options)
        return Place(leaf, _id(f"{leaf}-{new_id}", key) if options.is_later else "", is_unique=True)
    leaf = _FRESH + new_id
    return Place(leaf, _id(leaf, key), is_unique=False)


def unique_leaf(job: str, args: bytes, options: JobOptions) -> str:
    return _UNIQUE + _digest(*_what_is_unique(job, args, options))


def flow_place(flow: str, node: int, generation: int, key: str) -> Place:
    """Return the place of a node of a flow: always the same. ``generation`` counts how often it was taken back."""
    leaf = _FLOW + _digest("flow", flow, str(node), str(generation))
    return Place(leaf, _id(leaf, key), is_unique=True)


def cron_leaf(schedule: str) -> str:
    """Return the leaf of the jobs of a schedule, by its name."""
    return _CRON + _digest("schedule", schedule)


def _what_is_unique(job: str, args: bytes, options: JobOptions) -> tuple[str, ...]:
    if options.id:
        return "id", options.id
    if options.unique == "arguments":
        named = msgspec.json.decode(args)
        # Keyword arguments may have come in another order.
        text = msgspec.json.encode(named, order="deterministic").decode()
        return "arguments", job, options.key, text
    if options.unique == "key":
        return "key", options.key
    return "text", options.unique


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=15).hexdigest()


def _id(leaf: str, key: str) -> str:
    return f"{leaf}@{as_token(key)}" if key else leaf


def found_by(job_id: str) -> tuple[str, str]:
    """Return the leaf of a job, and its key in its subject form, by its id, which is not a sequence."""
    name, _, key = job_id.partition("@")
    return name.partition("-")[0], of_token(key)
