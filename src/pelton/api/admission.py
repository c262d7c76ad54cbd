"""Checks before anything is sent: refuses subjects, names and texts that cannot travel to a server.

Every backend calls these functions, so that the same mistake gets the same error from a file and from a cluster.
Mistakes that a NATS server answers with an error code are not checked here; those that it answers by closing the
connection, which would fail all other requests on it, are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from pelton.api.arguments import check_types
from pelton.api.build import check_token
from pelton.api.codec import names_of
from pelton.api.errors import ApiError, ConfigError, NoStreamForSubjectError, PeltonError, api_error, brief
from pelton.api.requests import ConsumerCreate, Request, StreamCreate
from pelton.api.times import enc_hook
from pelton.subjects import LONGEST, fault_of, fits, is_filter, is_subject

LONGEST_NAME: Final = 255
"""The most bytes of the name of a stream or a consumer."""

_SURROGATE: Final = "it holds a lone surrogate, which has no UTF-8 form"
_SIGNS: Final = (b"\\u0000", b"\\u000b")
_INVALID_SUBJECT: Final = "invalid subject"
_FREE_TEXTS: Final = "metadata"
_SUBJECT_FIELDS: Final = frozenset(
    {
        "subjects",
        "subject",
        "filter",
        "subjects_filter",
        "filter_subject",
        "filter_subjects",
        "deliver_subject",
        "last_by_subj",
        "next_by_subj",
        "src",
        "dest",
    }
)


def check_subject(subject: str) -> None:
    """Raise `ConfigError` for a subject that no message can be published under."""
    if not is_subject(subject):
        raise ConfigError(f"{brief(subject)} is not a subject: {fault_of(subject)}")


def not_taken(subject: str) -> PeltonError:
    """Return the error for a subject that no stream takes: it is malformed, or there is no such stream."""
    fault = fault_of(subject)
    return ConfigError(f"{brief(subject)} is not a subject: {fault}") if fault else NoStreamForSubjectError(subject)


def check_listening(subject: str, queue: str) -> None:
    """Raise `ConfigError` for a subject or `queue` that cannot be subscribed to."""
    if not is_filter(subject):
        raise ConfigError(f"subscribe to {brief(subject)}: it is not a filter: {fault_of(subject, wildcards=True)}")
    if not queue:
        return
    fault = fault_of(queue) or ("" if _has_length_of_name(queue) else f"it has more than {LONGEST_NAME} bytes")
    if fault:
        raise ConfigError(f"subscribe to {brief(subject)}: {brief(queue)} cannot name a queue: {fault}")


def check_request(request: Request[Any]) -> None:
    """Raise for a request whose fields have wrong types, or whose names or texts cannot travel.

    `ConfigError` for a wrong type, a malformed name, a subject that is too long, and text that cannot be encoded; for
    a name that is too long the server's own error: it does not exist, or cannot be created.
    """
    check_types(request)
    names = names_of(request)
    for what, name in names.items():
        check_token(what, name)
        if not _has_length_of_name(name):
            raise _too_long(request, what, names)
    try:
        body = msgspec.json.encode(request, enc_hook=enc_hook)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{_about(names)}{brief(str(error.object))} is not a text: {_SURROGATE}") from None
    if len(body) > LONGEST or any(sign in body for sign in _SIGNS):
        # Only then can it hold a subject that is too long, or one that servers allow but that cannot be published
        # under.
        for field, text in _subjects_in("", msgspec.to_builtins(request, enc_hook=enc_hook)):
            if not fits(text) or any(character in text for character in "\0\v"):
                raise ConfigError(f"{_about(names)}{field} {brief(text)} cannot be a subject: {fault_of(text)}")


def explain(error: ApiError, subjects: Iterable[str]) -> ApiError:
    """Return the server's refusal of a configuration; if one of these subjects is malformed, say which and why."""
    if error.description == _INVALID_SUBJECT:
        faults = ((subject, fault_of(subject, wildcards=True)) for subject in subjects)
        subject, fault = next(((subject, fault) for subject, fault in faults if fault), ("", ""))
        if fault:
            error.advise(f"{brief(subject)} is not a subject: {fault}; put one dot between tokens, as in 'orders.>'")
    return error


def _has_length_of_name(name: str) -> bool:
    return len(name) * 4 <= LONGEST_NAME or len(name.encode()) <= LONGEST_NAME


def _too_long(request: Request[Any], what: str, names: dict[str, str]) -> ApiError:
    if what == "consumer":
        constant = "JSConsumerNameTooLongErrF" if isinstance(request, ConsumerCreate) else "JSConsumerNotFoundErr"
        return api_error(constant, **names, max=LONGEST_NAME)
    if isinstance(request, StreamCreate):
        text = f"stream name is too long, maximum allowed is {LONGEST_NAME}"
        return api_error("JSStreamInvalidConfigF", **names, err=text)
    return api_error("JSStreamNotFoundErr", stream=names["stream"])


def _about(names: dict[str, str]) -> str:
    text = ", ".join(f"{what} {name!r}" for what, name in names.items())
    return text and f"{text}: "


def _subjects_in(field: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the subjects and filters in a request, each with its field."""
    if isinstance(value, str):
        if field in _SUBJECT_FIELDS:
            yield field, value
    elif isinstance(value, Mapping):
        for key, item in value.items() if field != _FREE_TEXTS else ():
            yield from _subjects_in(key, item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _subjects_in(field, item)
