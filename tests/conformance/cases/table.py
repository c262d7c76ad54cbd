"""The table of behaviours, and the helpers that state them.

A case is a small async function that takes an open, empty :class:`~pelton.Jet` and asserts one behaviour. It
holds on every backend, unless it is marked with :func:`only`, which names the backend and the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, NamedTuple, TypeVar

from pelton.api import AccountLimits, ApiError, PeltonError
from pelton.connect import Jet

Statement = Callable[[Jet], Awaitable[None]]
Side = Literal["engine", "server"]
E = TypeVar("E", bound=PeltonError)


class Case(NamedTuple):
    """One behaviour: its name, its function, and, if it holds on one side only, which and why.

    With ``limits`` it needs a store opened with them, or an account of a server that has them. ``lags`` tells why it
    may fail at first if the servers of a cluster keep replicas: some learn later than others. ``busy``: also on a
    single server.
    """

    name: str
    run: Statement
    side: Side | None = None
    reason: str = ""
    limits: AccountLimits | None = None
    lags: str = ""
    busy: bool = False


CASES: Final[list[Case]] = []


def case(statement: Statement) -> Statement:
    """State a behaviour of every backend."""
    return _add(statement, None, "")


def only(side: Side, reason: str) -> Callable[[Statement], Statement]:
    """State a behaviour in which embedded stores and NATS servers differ on purpose."""
    return lambda statement: _add(statement, side, reason)


def under(limits: AccountLimits) -> Callable[[Statement], Statement]:
    """State a behaviour of every backend whose user has these limits."""
    return lambda statement: _add(statement, None, "", limits)


def lagging(why: str, *, busy: bool = False) -> Callable[[Statement], Statement]:
    """State a behaviour of every backend that a lagging replica may hide for a while, or any ``busy`` server."""
    return lambda statement: _add(statement, None, "", lags=why, busy=busy)


def _add(
    statement: Statement,
    side: Side | None,
    reason: str,
    limits: AccountLimits | None = None,
    lags: str = "",
    *,
    busy: bool = False,
) -> Statement:
    group = statement.__module__.rpartition(".")[2]
    CASES.append(Case(f"{group}.{statement.__name__}", statement, side, reason, limits, lags, busy))
    return statement


async def refused(err_code: int, asked: Awaitable[Any]) -> ApiError:
    """Assert that the API answers with this error code, and return the error."""
    try:
        got = await asked
    except ApiError as error:
        assert error.err_code == err_code, f"refused with {error.err_code} ({error.description}), not {err_code}"
        return error
    raise AssertionError(f"not refused with {err_code}, but answered with {got!r}")


async def fails(kind: type[E], asked: Awaitable[Any]) -> E:
    """Assert that this error is raised, and return it."""
    try:
        got = await asked
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised, the answer is {got!r}")
