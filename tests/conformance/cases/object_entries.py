"""Entries of objects in a store (ADR-20): watched, changed, linked, sealed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pelton.api import (
    ApiError,
    BucketNotFoundError,
    ConfigError,
    ObjectExistsError,
    ObjectLinkError,
    ObjectNotFoundError,
)
from pelton.buckets import ObjectInfo
from pelton.connect import Jet
from tests.conformance.cases.objects import CONTENT, names_of
from tests.conformance.cases.table import case, fails, lagging


async def _upcoming(entries: AsyncIterator[ObjectInfo | None]) -> ObjectInfo | None:
    async with asyncio.timeout(60):
        return await anext(entries)


@lagging("a reader may be made where what was written has not arrived")
async def watching_begins_with_what_is_there(jet: Jet) -> None:
    store = await jet.create_objects("files")
    await store.put("a", CONTENT)
    await store.put("b", CONTENT)
    await store.delete("b")
    entries = store.watch()
    for name, deleted in (("a", False), ("b", True)):
        info = await _upcoming(entries)
        assert info is not None
        assert (info.name, info.deleted) == (name, deleted)
    assert await _upcoming(entries) is None
    await store.put("c", b"")
    info = await _upcoming(entries)
    assert info is not None
    assert (info.name, info.size) == ("c", 0)
    await entries.aclose()


@lagging("a reader may be made where what was written has not arrived")
async def watching_updates_only_or_without_deletes(jet: Jet) -> None:
    store = await jet.create_objects("files")
    await store.put("a", CONTENT)
    entries = store.watch(updates_only=True, ignore_deletes=True)
    assert await _upcoming(entries) is None
    await store.delete("a")
    await store.put("b", CONTENT)
    info = await _upcoming(entries)
    assert info is not None
    assert info.name == "b"
    await entries.aclose()


@case
async def what_is_said_of_it_can_change(jet: Jet) -> None:
    store = await jet.create_objects("files")
    await store.put("a", CONTENT, description="old", metadata={"k": "v"})
    await store.update("a", description="new", headers={"h": "1"})
    info = await store.info("a")
    assert (info.description, info.headers, info.metadata) == ("new", {"h": ["1"]}, {"k": "v"})
    assert (await store.get("a"), info.max_chunk_size) == (CONTENT, 128 * 1024)
    await fails(ObjectNotFoundError, store.update("b", description="new"))


@lagging("a reader may be made where what was written has not arrived")
async def its_name_can_change(jet: Jet) -> None:
    store = await jet.create_objects("files")
    await store.put("a", CONTENT)
    await store.put("b", CONTENT)
    await fails(ObjectExistsError, store.update("a", new_name="b"))
    assert (await store.update("a", new_name="c", description="moved")).name == "c"
    assert await store.get("c") == CONTENT
    await fails(ObjectNotFoundError, store.get("a"))
    assert sorted(await names_of(store, show_deleted=True)) == ["b", "c"]
    await store.delete("b")
    await store.update("c", new_name="b")
    assert (await store.get("b"), (await store.info("b")).description) == (CONTENT, "moved")


@case
async def links_lead_to_objects(jet: Jet) -> None:
    store, other = await jet.create_objects("files"), await jet.create_objects("other")
    target = await other.put("a", CONTENT)
    link = await store.add_link("l", target)
    assert link.link is not None
    assert (link.link.bucket, link.link.name, link.size) == ("other", "a", 0)
    assert await store.get("l") == CONTENT
    assert (await store.info("l")).link == link.link
    here = await store.put("b", b"here")
    await store.add_link("l", here)
    assert [chunk async for chunk in store.get_chunks("l")] == [b"here"]
    await store.delete("l")
    assert await store.get("b") == b"here"
    await store.add_link("l", here)
    await store.put("l", b"itself")
    assert (await store.get("l"), await store.get("b")) == (b"itself", b"here")


@case
async def where_no_link_can_lead(jet: Jet) -> None:
    store = await jet.create_objects("files")
    info = await store.put("a", CONTENT)
    link = await store.add_link("l", info)
    await fails(ObjectLinkError, store.add_link("m", link))
    await store.put("b", CONTENT)
    await fails(ObjectExistsError, store.add_link("b", info))
    await store.delete("a")
    await fails(ObjectLinkError, store.add_link("m", await store.info("a", show_deleted=True)))
    await fails(ObjectNotFoundError, store.get("l"))
    await store.add_link("a", await store.info("b"))
    assert await store.get("a") == CONTENT


@case
async def links_lead_to_stores(jet: Jet) -> None:
    store, other = await jet.create_objects("files"), await jet.create_objects("other")
    link = await store.add_bucket_link("l", other)
    assert link.link is not None
    assert (link.link.bucket, link.link.name) == ("other", "")
    await fails(ObjectLinkError, store.get("l"))
    await fails(ConfigError, store.add_bucket_link("l", "no name"))
    await store.put("a", CONTENT)
    await fails(ObjectExistsError, store.add_bucket_link("a", "other"))


@case
async def what_is_sealed_stays(jet: Jet) -> None:
    store = await jet.create_objects("files")
    await store.put("a", CONTENT)
    await store.seal()
    assert (await store.status()).sealed
    await fails(ApiError, store.put("b", CONTENT))
    await fails(ApiError, store.delete("a"))
    assert await store.get("a") == CONTENT


@case
async def its_status(jet: Jet) -> None:
    store = await jet.create_objects("files", description="d", ttl=3600, metadata={"k": "v"})
    await store.put("a", CONTENT)
    status = await store.status()
    assert (status.bucket, status.description, status.ttl, status.storage) == ("files", "d", 3600, "file")
    assert (status.sealed, status.is_compressed, status.replicas > 0, status.metadata["k"]) == (False, False, True, "v")
    assert status.size > len(CONTENT)
    await jet.create_bucket("files")
    assert await jet.objects_names() == ["files"]
    await jet.delete_objects("files")
    assert await jet.objects_names() == []
    await fails(BucketNotFoundError, jet.objects("files"))
    await fails(BucketNotFoundError, jet.delete_objects("files"))
    await fails(ConfigError, jet.create_objects("a b"))
