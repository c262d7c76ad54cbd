"""The administrative verbs of the JetStream API: JSON in, the engine's reply as JSON out (ADR-1)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from pelton.api import (
    ApiError,
    ConfigError,
    ConsumerCreate,
    ConsumerInfo,
    ConsumerPause,
    PeltonError,
    Request,
    StoreError,
    StreamCreate,
    StreamUpdate,
    api_error,
    headers,
)
from pelton.api.build import check_token
from pelton.api.codec import decode_request, encode_error, encode_failure, encode_reply, names_of, verb_of
from pelton.api.numbers import is_level
from pelton.engine.verbs.streams import checked_update
from pelton.server.jetstream.link import StoreLink
from pelton.server.jetstream.replies import API_LEVEL, ReplyCompletion
from pelton.server.ports import Published

_log: Final = logging.getLogger("pelton.server")
_PREFIX: Final = "$JS.API"
_OF_CLUSTERS: Final = {
    "STREAM.LEADER.STEPDOWN": "stream_leader_stepdown",
    "STREAM.PEER.REMOVE": "stream_remove_peer",
    "CONSUMER.LEADER.STEPDOWN": "consumer_leader_stepdown",
    "META.LEADER.STEPDOWN": "meta_leader_stepdown",
    "SERVER.REMOVE": "meta_server_remove",
    "ACCOUNT.PURGE": "account_purge",
}


class ApiVerbs:
    """Answers the verbs of one account."""

    def __init__(
        self, link: StoreLink, answer: Callable[[str, bytes | None, bytes], None], completion: ReplyCompletion
    ) -> None:
        self._link = link
        self._answer = answer
        self._completion = completion

    def take(self, path: str, message: Published) -> bool:
        """Answer a request; ``path`` is its subject below the prefix. False if there is no such verb."""
        subject = f"{_PREFIX}.{path}"
        verb = verb_of(subject)
        if verb is None:
            return self._take_other(path, message)
        kind = verb.request
        try:
            _check_level(message.block)
            request = decode_request(subject, message.data, check=_check_update)
            assert request is not None
            _check_names(request)
        except ApiError as error:
            self._refuse(message, subject, encode_error(kind, error))
            return True
        self._link.spawn(message.client, self._call(request, message), "pelton answers a request of the API")
        return True

    def _take_other(self, path: str, message: Published) -> bool:
        """Refuse a request that is for clusters."""
        refusal = refusal_for_clusters(path)
        if refusal is None:
            return False
        self._refuse(message, f"{_PREFIX}.{path}", refusal)
        return True

    def _refuse(self, message: Published, subject: str, body: bytes) -> None:
        """Answer a request that the store does not hear of, but for its audit."""
        self._answer(message.reply, None, body)
        self._link.audit(message, subject, body, is_refused=True)

    async def _call(self, request: Request[Any], message: Published) -> None:
        kind = type(request)
        try:
            await self._link.storing.up_to_here()
            found = await self._link.engine.call(request, self._link.about(message.client))
            self._link.interest.look_at_pushes()
            if isinstance(found, ConsumerInfo) and self._link.interest.is_pushed_here(found.config.deliver_subject):
                # The engine may not know yet.
                found = replace(found, push_bound=True)
            body = encode_reply(kind, self._completion.complete(request, found))
        except PeltonError as error:
            body = encode_error(kind, as_api_error(request, error))
        self._answer(message.reply, None, body)


def refusal_for_clusters(path: str) -> bytes | None:
    """Return the refusal of a request that is for clusters; None for another one."""
    name = next((name for name in _OF_CLUSTERS if path.startswith(name)), "")
    return encode_failure(_OF_CLUSTERS[name], api_error("JSClusterRequiredErr")) if name else None


def _check_names(request: Request[Any]) -> None:
    """Raise ApiError if a request names what cannot be there; what is to be made gets its reason from the engine."""
    if isinstance(request, StreamCreate | StreamUpdate | ConsumerCreate):
        return
    for what, name in names_of(request).items():
        try:
            check_token(what, name)
        except ConfigError:
            raise api_error("JSStreamNotFoundErr" if what == "stream" else "JSConsumerNotFoundErr") from None


def _check_update(request: StreamUpdate) -> None:
    with suppress(ConfigError):
        checked_update(request)


def _check_level(block: bytes | None) -> None:
    """Refuse a request that needs a newer API (ADR-44)."""
    wanted = headers.asked(block, headers.REQUIRED_API_LEVEL) if block else None
    if not is_level(wanted, API_LEVEL):
        raise api_error("JSRequiredApiLevelErr")


def as_api_error(request: Request[Any], error: PeltonError) -> ApiError:
    """Return what a client is told of an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ConfigError):
        if isinstance(request, StreamCreate | StreamUpdate | ConsumerCreate) and request.config.num_replicas > 1:
            return api_error("JSStreamReplicasNotSupportedErr")
        if isinstance(request, ConsumerPause):
            return api_error("JSInvalidJSONErr", err=str(error))
        return _missing(request) or api_error("JSStreamInvalidConfigF", err=str(error))
    if isinstance(error, StoreError):
        _log.warning("a request of the API was refused: %s", error)
        return api_error("JSClusterNotAvailErr")
    return api_error("JSStreamStoreFailedF", err=str(error))


def _missing(request: Request[Any]) -> ApiError | None:
    """Return that what a request is about is not there, if nothing can have its name."""
    wanted = {"StreamNotFound": getattr(request, "stream", ""), "ConsumerNotFound": getattr(request, "name", "")}
    if not wanted["StreamNotFound"]:
        wanted = {"StreamNotFound": wanted["ConsumerNotFound"]}
    codes = (f"JS{code}Err" for code, name in wanted.items() if "*" in name or ">" in name)
    return next(map(api_error, codes), None)
