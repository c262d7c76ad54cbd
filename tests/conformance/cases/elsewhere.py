"""External sources and mirrors: other domains and accounts, and consumers that were made for them (ADR-59)."""

from __future__ import annotations

from typing import Any, Final

from pelton.api.config import External
from pelton.api.errors import ConfigError
from pelton.connect import Jet
from tests.conformance.cases.table import case, fails, only, refused

_CONSUMER: Final = {"name": "C", "deliver_subject": "to.s"}
_HUB: Final = {"api": "$JS.hub.API", "deliver": "to.s"}


async def _make(jet: Jet, kind: str, **origin: Any) -> None:
    source = {"name": "O", **origin}
    fields: dict[str, Any] = {"mirror": source} if kind == "mirror" else {"sources": [source]}
    await jet.create_stream("S", **fields)


@case
async def prefixes_that_cannot_be(jet: Jet) -> None:
    for kind in ("mirror", "source"):
        await refused(10021, _make(jet, kind, external={"api": "$JS.API"}))
        for deliver in ("x.>", "x y"):
            await refused(10024, _make(jet, kind, external={"api": "$JS.API", "deliver": deliver}))
        for api in ("a.>", "a b"):
            error = await refused(10052, _make(jet, kind, external={"api": api}))
            assert error.description.endswith("must be a valid subject without wildcards")


@case
async def consumers_that_cannot_be_taken_from(jet: Jet) -> None:
    wrong: list[dict[str, Any]] = [
        {"consumer": {"name": "", "deliver_subject": "to.s"}},
        {"consumer": {"name": "C.*", "deliver_subject": "to.s"}},
        {"consumer": {"name": "C", "deliver_subject": ""}},
        {"consumer": {"name": "C", "deliver_subject": "to.>"}},
        {"consumer": _CONSUMER, "filter_subject": "o.1"},
        {"consumer": _CONSUMER, "opt_start_seq": 3},
        {"consumer": {"name": "C.*", "deliver_subject": "to.s"}, "filter_subject": "o..1", "external": _HUB},
    ]
    for origin in wrong:
        await refused(10213, _make(jet, "mirror", **origin))
        await refused(10215, _make(jet, "source", **origin))


@case
async def one_consumer_feeds_one_source(jet: Jet) -> None:
    renamed = [{"src": "o.1", "dest": "x"}]
    sources = [
        {"name": "O", "consumer": _CONSUMER},
        {"name": "O", "subject_transforms": renamed, "consumer": _CONSUMER},
    ]
    await refused(10216, jet.create_stream("S", sources=sources))


@only("engine", "a store takes nothing from consumers of other domains; jet.feed carries messages over")
async def consumers_elsewhere_are_refused(jet: Jet) -> None:
    for kind in ("mirror", "source"):
        error = await fails(ConfigError, _make(jet, kind, external=_HUB, consumer=_CONSUMER))
        assert "feed('O', jet)" in str(error)


@case
async def an_origin_elsewhere_may_come_later(jet: Jet) -> None:
    for kind in ("mirror", "source"):
        await _make(jet, kind, external=_HUB)
        info = await (await jet.stream("S")).info()
        told = info.mirror if kind == "mirror" else info.sources[0]
        assert told is not None
        assert (told.lag, told.seq, told.active.ns, told.error, told.external) == (0, 0, -1, None, External(**_HUB))
        await jet.delete_stream("S")
