"""A backup that continues: points of a store in a folder, or at any address that fsspec knows.

Design: What a point is, and which of them go, is decided in ``points.py``; here it is done. Whatever is killed, a point
is there or not: its parts are written and read back, then its manifest is. Each file is written in one step where the
target can do that (a folder, object stores); elsewhere its checksum tells that it is not complete.

Who writes holds a lock in the target, a point at a time. In a folder it is a lock of the operating system. At an
address it is a file with a number that its holder raises as it goes on; it is taken over once it has not changed for as
long as a holder may take, by the clock of the one who waits. If two hold it all the same, each writes points of its
own, under ids of its own: none is overwritten, and each can be restored.

A point is the snapshot of one moment (``storage/pages.py``), which is verified before anything is written: the
structure of all pages, and the checksum of each message. For a full point, all that ``pelton verify`` compares is
compared as well.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from typing import Final, Protocol, cast

from msgspec.structs import replace

from pelton.api import ConfigError, StoreBusyError, StoreError, StoreFullError
from pelton.api.arguments import path_of
from pelton.api.backend import Progress, StrPath
from pelton.api.keys import Key, key_bytes
from pelton.api.times import SECOND
from pelton.api.wording import without_login
from pelton.connect import open as open_store
from pelton.engine.upkeep import public_faults, verify
from pelton.moving.points import (
    MARKER,
    NEW,
    PAGES_OF_PART,
    BackupPart,
    BackupPoint,
    chain_of,
    checksum_of,
    choose,
    decode_index,
    decode_part,
    encode_part,
    encode_point,
    is_full_due,
    is_manifest,
    is_ours,
    leftovers,
    manifest_of,
    owners_of,
    part_name,
    points_of,
    pruning,
    size_of_index,
    time_of_next,
)
from pelton.moving.promotion import go_on_apart
from pelton.runtime import Runtime, pause, system_runtime
from pelton.storage import note_backup
from pelton.storage.copies import set_apart, sync_file, unfinished
from pelton.storage.faults import fault_of
from pelton.storage.pages import DIGEST_SIZE, PageSnapshot, digest_of, page_snapshot
from pelton.storage.wal import PAGE_SIZE

_log: Final = logging.getLogger("pelton.moving")
_LOCK: Final = "lock"
_MARK: Final = b'{"format": 1}\n'
_TRIES: Final = 5
_HELD_S: Final = 120.0
_LOOK_S: Final = 2.0
_STEPPED_S: Final = 60.0
_Page = tuple[int, bytes, bytes]
Renew = Callable[[], None]


class BackupTarget(Protocol):
    """Where a backup is: files with names like ``points/00000001-x.json``. Raises StoreError if it cannot be used."""

    address: str

    def names(self) -> list[str]:
        """Return the names of all files, of those that are not ours as well."""

    def read(self, names: Sequence[str], size: int | None = None) -> dict[str, bytes]:
        """Return what files hold, or their first ``size`` bytes; without those that do not exist."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file, durably."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def lock(self, runtime: Runtime) -> AbstractContextManager[Renew]:
        """Hold the target alone; call what this yields at least every minute. Raises StoreBusyError."""


class FolderTarget:
    """A folder, which is created with its first point."""

    def __init__(self, folder: str) -> None:
        self.address: str = folder

    def names(self) -> list[str]:
        with self._failures():
            return [
                os.path.relpath(os.path.join(folder, name), self.address)
                for folder, _, names in os.walk(self.address)
                for name in names
            ]

    def read(self, names: Sequence[str], size: int | None = None) -> dict[str, bytes]:
        found = {}
        with self._failures():
            for name in names:
                with suppress(FileNotFoundError), open(os.path.join(self.address, name), "rb") as file:
                    found[name] = file.read(-1 if size is None else size)
        return found

    def write(self, name: str, data: bytes) -> None:
        """Write a file, in one step if the target can."""
        path = os.path.join(self.address, name)
        with self._failures():
            self._make(os.path.dirname(path))
            with open(path + NEW, "wb", opener=_for_owner) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + NEW, path)
            sync_file(os.path.dirname(path))

    def remove(self, name: str) -> None:
        with self._failures(), suppress(FileNotFoundError):
            os.unlink(os.path.join(self.address, name))

    @contextmanager
    def lock(self, runtime: Runtime) -> Iterator[Renew]:
        with self._failures():
            self._make(self.address)
            descriptor = os.open(os.path.join(self.address, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreBusyError(self.address, "another process adds a point to this backup") from None
            yield lambda: None
        finally:
            os.close(descriptor)

    def _make(self, folder: str) -> None:
        if not os.path.isdir(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            sync_file(os.path.dirname(os.path.abspath(folder)))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if fault_of(error, self.address).kind == "full":
                raise StoreFullError(self.address, str(error)) from error
            raise StoreError(self.address, f"the target of the backup cannot be used: {error}") from error


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


class AddressTarget:
    """An address that fsspec knows, such as ``s3://bucket/shop``."""

    def __init__(self, address: str, pause: Callable[[float], None] = pause) -> None:
        self.address: str = address
        self._pause = pause
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ConfigError(f"a backup to {address} needs fsspec: pip install 'pelton[fsspec]'") from None
        with self._failures():
            self._fs, root = url_to_fs(address, use_listings_cache=False)
            self._root = root.rstrip("/") + "/"

    def names(self) -> list[str]:
        with self._failures():
            if not self._fs.exists(self._root.rstrip("/")):
                return []
            return [path.removeprefix(self._root) for path in map(str, self._fs.find(self._root))]

    def read(self, names: Sequence[str], size: int | None = None) -> dict[str, bytes]:
        if not names:
            return {}
        paths = {self._root + name: name for name in names}
        with self._failures():
            if size is not None:
                return {name: self._fs.cat_file(path, end=size) for path, name in paths.items()}
            found = self._fs.cat([*paths], on_error="omit")
            return {paths[path]: data for path, data in found.items()}

    def write(self, name: str, data: bytes) -> None:
        """Write a file, in one step if the target can."""
        with self._failures():
            self._fs.makedirs((self._root + name).rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(self._root + name, data)

    def remove(self, name: str) -> None:
        with self._failures(), suppress(FileNotFoundError):
            self._fs.rm_file(self._root + name)

    @contextmanager
    def lock(self, runtime: Runtime) -> Iterator[Renew]:
        mine, count = runtime.ids.new(), 0

        def renew() -> None:
            nonlocal count
            if count and not self._held().startswith(mine.encode()):
                raise StoreBusyError(self.address, "another process has taken its lock, because this one was too slow")
            count += 1
            self.write(_LOCK, f"{mine} {count}".encode())

        self._wait(runtime)
        renew()
        # Of two that came at once, the last to write has it.
        self._pause(_LOOK_S)
        renew()
        try:
            yield renew
        finally:
            if self._held().startswith(mine.encode()):
                self.remove(_LOCK)

    def _held(self) -> bytes:
        return self.read([_LOCK]).get(_LOCK, b"")

    def _wait(self, runtime: Runtime) -> None:
        """Return once nobody holds the lock, or its holder has not gone on for as long as one may take."""
        found, since = self._held(), runtime.clock.boottime()
        if found:
            _log.info("another process has the lock of %s: waiting until it goes on, or ends", self.address)
        while found and runtime.clock.boottime() - since < _HELD_S:
            self._pause(_LOOK_S)
            now = self._held()
            if now and now != found:
                raise StoreBusyError(self.address, "another process adds a point to this backup")
            found = now

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (ConfigError, StoreError, FileNotFoundError):
            raise
        except Exception as error:
            raise StoreError(self.address, f"the target of the backup cannot be used: {error!r}") from error


def target_of(address: StrPath) -> BackupTarget:
    """Return the target at an address, or in a folder. Raises ConfigError."""
    text = path_of("backup", address)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return FolderTarget(text)
    return FolderTarget(rest) if scheme in ("file", "local") else AddressTarget(text)


class ContinuousBackup:
    """The points of one store's backup in ``target``, a folder or an address such as ``s3://bucket/shop``.

    Each method blocks: in an async program, call it with ``asyncio.to_thread``. An address needs ``pelton[fsspec]``,
    and what fsspec needs for it. Keep the object to add points again and again: it remembers what the last one holds.
    """

    def __init__(self, target: StrPath | BackupTarget, *, runtime: Runtime | None = None) -> None:
        is_place = isinstance(target, str | bytes | os.PathLike)
        self._target = target_of(cast(StrPath, target)) if is_place else cast(BackupTarget, target)
        self._runtime = runtime or system_runtime()
        self._manifests: dict[str, bytes] = {}
        # The name of the last point, and the digests of its pages.
        self._known: tuple[str, bytearray] = "", bytearray()
        self._started = self._ahead_s()

    def _ahead_s(self) -> float:
        clock = self._runtime.clock
        return clock.now() / SECOND - clock.boottime()

    def points(self) -> list[BackupPoint]:
        """Return all points, from the oldest; none if there is no backup. Raises StoreError."""
        return points_of(self._read_manifests(self._target.names()))

    def _read_manifests(self, names: Iterable[str]) -> Mapping[str, bytes]:
        there = [name for name in names if is_manifest(name)]
        known = {name: self._manifests[name] for name in there if name in self._manifests}
        self._manifests = known | self._target.read([name for name in there if name not in known])
        return self._manifests

    # --- adding a point

    def add(
        self, path: StrPath, *, key: Key | None = None, keep: float | None = None, progress: Progress | None = None
    ) -> BackupPoint:
        """Add a point with what the store at ``path`` holds now, in use or not, and return it once it is durable.

        ``keep``: how many seconds of points to keep; None: all. ``key`` is that of an encrypted store; what is written
        is encrypted as the store is. ``progress`` is called with the bytes done and the total.

        Raises StoreError if the store is damaged (nothing is written then) or the target cannot be used,
        StoreFullError, StoreBusyError if another process adds a point, ConfigError if the target holds something else.
        """
        path, secret = path_of("backup", path), key_bytes(key)
        for _ in range(_TRIES):
            names = self._target.names()
            self._check_ours(names)
            points = points_of(self._read_manifests(names))
            with public_faults(), page_snapshot(path, secret) as snapshot:
                self._check_store(points, snapshot)
                point = self._add(snapshot, points, path, key, keep, progress or (lambda done, total: None))
            if point is not None:
                return point
        raise StoreBusyError(self._target.address, "other processes add points to this backup again and again")

    def _check_ours(self, names: Sequence[str]) -> None:
        if MARKER not in names and (others := [name for name in names if name != _LOCK and not is_ours(name)]):
            detail = f"it holds something else ({others[0]}): give an empty folder, or one of its own"
            raise ConfigError(f"{self._target.address} is no backup of Pelton: {detail}")

    def _check_store(self, points: Sequence[BackupPoint], snapshot: PageSnapshot) -> None:
        if points and points[-1].store != snapshot.uuid:
            raise ConfigError(f"{self._target.address} is the backup of another store: give a target of its own")

    def _add(
        self,
        snapshot: PageSnapshot,
        points: Sequence[BackupPoint],
        path: str,
        key: Key | None,
        keep: float | None,
        progress: Progress,
    ) -> BackupPoint | None:
        """Add a point after these; return None if another process has added one meanwhile."""
        is_full = is_full_due(points)
        before = bytearray() if is_full else self._digests_of(points)
        digests = snapshot.digests()
        changed = _changed_pages(before, digests)
        if changed:
            self._check_sound(snapshot, path, key, None if is_full else changed)
        now = self._runtime.clock.now()
        point = BackupPoint(
            number=points[-1].number + 1 if points else 1,
            id=self._runtime.ids.new()[:12],
            parent="" if is_full else points[-1].name,
            time_ns=time_of_next(points, now),
            store=snapshot.uuid,
            size=snapshot.count * PAGE_SIZE,
            page_size=PAGE_SIZE,
            messages=snapshot.messages,
            checksum=checksum_of(digests),
        )
        if point.time_ns > now:
            _log.warning("the clock is behind the last point of %s: was it set back?", self._target.address)
        with self._target.lock(self._runtime) as renew:
            names = self._target.names()
            if points_of(self._read_manifests(names)) != points:
                return None
            self._clean(names)
            if MARKER not in names:
                self._write(MARKER, _MARK)
            pages = (
                (number, bytes(digests[(number - 1) * DIGEST_SIZE : number * DIGEST_SIZE]), snapshot.page(number))
                for number in changed
            )
            total = len(changed) * PAGE_SIZE
            point = replace(point, parts=self._write_parts(point, pages, renew, lambda done: progress(done, total)))
            self._write(manifest_of(point), encode_point(point))
            self._known = point.name, digests
            self._prune(keep, renew)
        note_backup(path, without_login(self._target.address), point.time_ns)
        return point

    def _check_sound(self, snapshot: PageSnapshot, path: str, key: Key | None, changed: Sequence[int] | None) -> None:
        """Raise StoreError if a store is damaged; ``changed``: the pages that no point has, None for a full point."""
        found = snapshot.damage(changed) or (verify(path, key) if changed is None else [])
        if found:
            detail = f"it is damaged, and no point was made of it: {found[0]}; save what it holds with pelton salvage"
            raise StoreError(path, f"{detail}, or restore an earlier point")

    def _digests_of(self, points: Sequence[BackupPoint]) -> bytearray:
        name, digests = self._known
        if name != points[-1].name:
            _, digests, _ = self._read_indexes(chain_of(points, points[-1]))
        return digests

    def _write(self, name: str, data: bytes) -> None:
        """Write a file, and read it again."""
        self._target.write(name, data)
        if self._target.read([name]).get(name) != data:
            raise StoreError(self._target.address, f"{name} is not what was written there: check the target")

    def _write_parts(
        self,
        point: BackupPoint,
        pages: Iterator[_Page],
        renew: Renew,
        on_done: Callable[[int], object],
        *,
        folded: bool = False,
    ) -> tuple[BackupPart, ...]:
        parts: list[BackupPart] = []
        while batch := list(islice(pages, PAGES_OF_PART)):
            renew()
            data = encode_part(batch)
            name = part_name(point, len(parts), folded=folded)
            self._write(name, data)
            parts.append(BackupPart(name, len(data), checksum_of(data), len(batch)))
            on_done(sum(part.pages for part in parts) * PAGE_SIZE)
        renew()
        return tuple(parts)

    def _clean(self, names: Sequence[str]) -> None:
        """Remove what was killed has left."""
        for name in leftovers(names, self._manifests):
            self._target.remove(name)
            self._manifests.pop(name, None)

    # --- removing old points

    def _prune(self, keep: float | None, renew: Renew) -> None:
        if keep is None:
            return
        if abs(self._ahead_s() - self._started) > _STEPPED_S:
            _log.warning("the clock was set: no old point of %s is removed until this is started again", self._target)
            return
        plan = pruning(self.points(), self._runtime.clock.now(), int(keep * SECOND))
        if plan.fold is not None:
            self._fold(plan.fold, renew)
        if plan.fold is None and not plan.drop:
            return
        for point in plan.drop:
            for folded in (False, True):
                self._target.remove(manifest_of(point, folded=folded))
        names = self._target.names()
        self._read_manifests(names)
        self._clean(names)

    def _fold(self, point: BackupPoint, renew: Renew) -> None:
        """Make a point full: with the newest of each page of its chain."""
        chain = chain_of(self.points(), point)
        owners, _, parts = self._read_indexes(chain)
        pages = self._newest_pages(owners, parts, renew)
        written = self._write_parts(point, pages, renew, lambda done: None, folded=True)
        full = replace(point, parent="", parts=written)
        self._write(manifest_of(full, folded=True), encode_point(full))

    # --- reading

    def _read_indexes(self, chain: Sequence[BackupPoint]) -> tuple[list[int], bytearray, list[BackupPart]]:
        """Return which part has the newest of each page, the digests of the pages, and the parts."""
        parts = [part for point in chain for part in point.parts]
        with self._damage():
            indexes = []
            for part in parts:
                head = self._target.read([part.name], size_of_index(part)).get(part.name, b"")
                indexes.append(decode_index(head, part))
            owners, digests = owners_of(indexes, chain[-1].pages)
            if checksum_of(digests) != chain[-1].checksum:
                raise ValueError("its pages are not those that were written")
        return owners, digests, parts

    def _newest_pages(self, owners: Sequence[int], parts: Sequence[BackupPart], renew: Renew) -> Iterator[_Page]:
        wanted = set(owners[1:])
        for place, part in enumerate(parts):
            if place not in wanted:
                continue
            renew()
            with self._damage():
                data = self._target.read([part.name]).get(part.name, b"")
                for number, digest, page in decode_part(data, part):
                    if number < len(owners) and owners[number] == place:
                        if digest_of(page) != digest:
                            raise ValueError(f"page {number} of {part.name} does not match its checksum")
                        yield number, digest, page

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, FileNotFoundError) as error:
            detail = f"the backup is damaged, or was pruned meanwhile: {error}; restore another point"
            raise StoreError(self._target.address, detail) from error

    def restore(
        self, path: StrPath, *, at_ns: int | None = None, key: Key | None = None, progress: Progress | None = None
    ) -> BackupPoint:
        """Create the store ``path`` from the last point that is not after ``at_ns`` (wall nanoseconds); return it.

        Without ``at_ns``, from the last one. ``key`` is that of an encrypted store; ``progress`` is called with the
        bytes done and the total. The new store is verified before it gets its name, and gives fencing tokens above all
        that were given after the point. Raises ConfigError if there is no such point, StoreSettingsError if ``path``
        exists, StoreError if the backup is damaged, StoreKeyError.
        """
        path, told = path_of("restore", path), progress or (lambda done, total: None)
        points = self.points()
        point = choose(points, at_ns, self._target.address)
        owners, _, parts = self._read_indexes(chain_of(points, point))
        with public_faults(), unfinished(path, None) as file:
            with open(file, "r+b") as store:
                for done, (number, _, page) in enumerate(self._newest_pages(owners, parts, lambda: None), 1):
                    store.seek((number - 1) * PAGE_SIZE)
                    store.write(page)
                    told(done * PAGE_SIZE, point.size)
            if found := verify(file, key):
                with suppress(OSError):
                    os.unlink(file + "-damage")
                raise StoreError(path, f"what was restored is damaged: {found[0]}; restore another point")
            set_apart(file, key_bytes(key), far=True)
            # On a thread, as the caller's own may run an event loop.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda: asyncio.run(_go_on(file, key))).result()
        return point


async def _go_on(file: str, key: Key | None) -> None:
    async with open_store(file, key=key) as jet:
        await go_on_apart(jet)


def _changed_pages(before: bytes | bytearray, after: bytes | bytearray) -> list[int]:
    """Return the numbers of the pages whose digests differ."""
    step = DIGEST_SIZE
    return [at // step + 1 for at in range(0, len(after), step) if after[at : at + step] != before[at : at + step]]
