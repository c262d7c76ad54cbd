"""Points of a backup that continues: what each of them is, where it begins, which of them go. Pure decisions.

Design: A *point* is a store as of one moment. A full one has all pages of the store; any other has those that have
changed since its *parent*. So a point is restored from its *chain*, from a full one to itself. A chain ends, and the
next point is full, once its changes weigh as much as the full one: a restore reads at most twice what the store weighs.

The pages of a point are in *parts* of at most 16 MiB. A point exists once its *manifest* does, which is written last,
names its parts with their checksums, and ends with a checksum of its own. Everything else in the target that has a name
of ours, and is named by no manifest, is a leftover of something that was killed.

Points that are older than asked for go together with the chains they belong to. If a point that is kept needs older
ones, its chain is *folded*: it becomes a full point, under the same name, beside the manifest that it had before.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from struct import Struct as Layout
from typing import Final

import msgspec

from pelton.api import ConfigError
from pelton.api.wording import moment_text

PAGES_OF_PART: Final = 4096
MARKER: Final = "pelton-backup.json"
NEW: Final = ".new"
_DIGEST: Final = 16
_MAGIC: Final = b"PELPART1"
_HEAD: Final = Layout(">8sIIB3x")
_ENTRY: Final = Layout(f">I{_DIGEST}s")
_LONGEST: Final = 500
# Fold as soon as an eighth of the points of a chain is older than asked for.
_SHARE: Final = 8
_MANIFEST: Final = re.compile(r"points/(\d{8}-[0-9A-Za-z]+)(\.full)?\.json")
_PART: Final = re.compile(r"pages/\d{8}-[0-9A-Za-z]+-(full-)?\d{5}")


class BackupPart(msgspec.Struct, frozen=True):
    """A file with pages of a store."""

    name: str
    """Its name in the target."""
    size: int
    """How many bytes it has."""
    checksum: str
    """The BLAKE2b of its bytes, 128 bits in hexadecimal digits."""
    pages: int
    """How many pages are in it."""


class BackupPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a backup: a store as of one moment, to which it can be restored."""

    number: int
    """Points of a target are counted from 1."""
    id: str
    """It tells apart what two processes have written under one number."""
    parent: str = ""
    """The name of the point that it continues; of a full point it is empty."""
    time_ns: int
    """The moment, in wall nanoseconds; later than that of the point before."""
    store: str
    """The identity of the store."""
    size: int
    """How many bytes the store has."""
    page_size: int
    """How many bytes a page has."""
    messages: int
    """How many messages the store holds."""
    checksum: str
    """The BLAKE2b of the digests of all its pages, 128 bits in hexadecimal digits."""
    parts: tuple[BackupPart, ...] = ()
    """What was written for it; none if nothing had changed."""

    @property
    def name(self) -> str:
        """The name of the point in its target."""
        return f"{self.number:08d}-{self.id}"

    @property
    def pages(self) -> int:
        """How many pages the store has."""
        return self.size // self.page_size

    @property
    def written(self) -> int:
        """How many bytes were written for it."""
        return sum(part.size for part in self.parts)


# --- manifests


def checksum_of(data: bytes | bytearray) -> str:
    """Return the checksum of a file, or of the digests of pages."""
    return blake2b(data, digest_size=_DIGEST).hexdigest()


def encode_point(point: BackupPoint) -> bytes:
    line = msgspec.json.encode(point)
    return line + b"\n" + checksum_of(line).encode() + b"\n"


def decode_point(data: bytes) -> BackupPoint | None:
    """Return the point of a manifest; None if it is not complete."""
    line, _, checksum = data.partition(b"\n")
    if checksum.strip() != checksum_of(line).encode():
        return None
    try:
        return msgspec.json.decode(line, type=BackupPoint)
    except msgspec.DecodeError:
        return None


def manifest_of(point: BackupPoint, *, folded: bool = False) -> str:
    return f"points/{point.name}{'.full' * folded}.json"


def part_name(point: BackupPoint, index: int, *, folded: bool = False) -> str:
    return f"pages/{point.name}-{'full-' * folded}{index:05d}"


def is_manifest(name: str) -> bool:
    """Whether a file of the target may be a manifest."""
    return _MANIFEST.fullmatch(name) is not None


def is_ours(name: str) -> bool:
    """Whether a name in a target is one that a backup gives, also while it is written."""
    name = name.removesuffix(NEW)
    return is_manifest(name) or _PART.fullmatch(name) is not None or name == MARKER


def points_of(manifests: Mapping[str, bytes]) -> list[BackupPoint]:
    """Return the points that can be restored, from the oldest; ``manifests`` are the files by their names.

    What was folded stands for what it was before. A point whose chain is not complete is none.
    """
    found: dict[str, BackupPoint] = {}
    # A folded one sorts before, and the other does not take its place.
    for name in sorted(manifests, key=lambda each: (".full." not in each, each)):
        point = decode_point(manifests[name])
        if point is not None and manifest_of(point) == name.replace(".full.", "."):
            found.setdefault(point.name, point)
    usable: dict[str, BackupPoint] = {}
    for point in sorted(found.values(), key=lambda each: (each.number, each.time_ns, each.id)):
        if not point.parent or point.parent in usable:
            usable[point.name] = point
    return list(usable.values())


def leftovers(names: Iterable[str], manifests: Mapping[str, bytes]) -> list[str]:
    """Return the names of files that belong to no point: what something that was killed has left."""
    kept = {MARKER}
    for point in points_of(manifests):
        kept |= {part.name for part in point.parts}
        folded = manifest_of(point, folded=True)
        kept.add(manifest_of(point) if point.parent or folded not in manifests else folded)
    return sorted(name for name in names if is_ours(name) and name not in kept)


# --- which point


def chain_of(points: Sequence[BackupPoint], point: BackupPoint) -> list[BackupPoint]:
    """Return what a point is restored from, from a full one to itself."""
    named = {each.name: each for each in points}
    chain = [point]
    while chain[-1].parent:
        chain.append(named[chain[-1].parent])
    return chain[::-1]


def choose(points: Sequence[BackupPoint], at_ns: int | None, target: str) -> BackupPoint:
    """Return the last point that is not after a moment; without one, the last. Raises ConfigError."""
    if not points:
        raise ConfigError(f"{target}: there is no point of a backup: check the address, or make one with pelton backup")
    if at_ns is None:
        return points[-1]
    found = [point for point in points if point.time_ns <= at_ns]
    if not found:
        first = moment_text(points[0].time_ns)
        raise ConfigError(f"{target}: no point is so old: the first one is of {first}; list them with --list")
    return max(found, key=lambda point: (point.time_ns, point.number))


def time_of_next(points: Sequence[BackupPoint], now: int) -> int:
    """Return the time of the next point: after the last one's, also if the clock was set back."""
    return max([now, *(point.time_ns + 1 for point in points)])


def is_full_due(points: Sequence[BackupPoint]) -> bool:
    """Whether the next point has all pages."""
    if not points:
        return True
    full, *changes = chain_of(points, points[-1])
    return len(changes) >= _LONGEST or sum(point.written for point in changes) >= full.written


class Pruning(msgspec.Struct, frozen=True):
    """What goes: first ``fold`` becomes a full point, if it is one; then the points of ``drop`` go, in this order."""

    fold: BackupPoint | None
    drop: tuple[BackupPoint, ...]


def pruning(points: Sequence[BackupPoint], now: int, keep_ns: int) -> Pruning:
    """Decide what goes if points of the last ``keep_ns`` are kept, and the last one before, which stands for its begin.

    The newest point always stays.
    """
    begin = max([now, *(point.time_ns for point in points)]) - keep_ns
    old = [point for point in points if point.time_ns <= begin]
    # The last one before the time that is kept stays; of all points, the newest.
    kept = [point for point in points if point.time_ns > begin]
    if last := max(old, key=lambda point: (point.time_ns, point.number), default=None):
        kept.insert(0, last)
        old.remove(last)
    needed = {each.name for point in kept for each in chain_of(points, point)}
    fold = next((point for point in kept if point.parent), None) if old else None
    if fold is not None:
        chain = chain_of(points, fold)
        here = sum(chain_of(points, point)[0] is chain[0] for point in points)
        behind = [each for each in chain[:-1] if each in old]
        if not behind or len(behind) * _SHARE < here:
            fold = None
        else:
            needed -= {each.name for each in behind}
    # Children before their parents: whatever is left of them at any moment can be restored.
    return Pruning(fold, tuple(point for point in reversed(old) if point.name not in needed))


# --- parts


def encode_part(pages: Sequence[tuple[int, bytes, bytes]]) -> bytes:
    """Return a part with these pages: the number, the digest and the bytes of each."""
    body = b"".join(page for _, _, page in pages)
    packed = zlib.compress(body, 1)
    is_packed = len(packed) < len(body)
    index = b"".join(_ENTRY.pack(number, digest) for number, digest, _ in pages)
    head = _HEAD.pack(_MAGIC, len(pages), len(pages[0][2]), is_packed)
    return head + index + (packed if is_packed else body)


def size_of_index(part: BackupPart) -> int:
    """Return how many bytes at the beginning of a part tell what is in it."""
    return _HEAD.size + part.pages * _ENTRY.size


def decode_index(data: bytes, part: BackupPart) -> list[tuple[int, bytes]]:
    """Return the numbers and digests of the pages of a part, of which this is the beginning. Raises ValueError."""
    if len(data) < size_of_index(part) or _HEAD.unpack_from(data)[:2] != (_MAGIC, part.pages):
        raise ValueError(f"{part.name} is not what was written")
    return [_ENTRY.unpack_from(data, _HEAD.size + index * _ENTRY.size) for index in range(part.pages)]


def decode_part(data: bytes, part: BackupPart) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number, the digest and the bytes of the pages of a part. Raises ValueError if it is damaged."""
    if checksum_of(data) != part.checksum:
        raise ValueError(f"{part.name} does not match its checksum")
    index = decode_index(data, part)
    *_, size, is_packed = _HEAD.unpack_from(data)
    body = data[size_of_index(part) :]
    pages = zlib.decompress(body) if is_packed else body
    places = pairwise(range(0, len(pages) + 1, size))
    for (number, digest), (begin, end) in zip(index, places, strict=True):
        yield number, digest, pages[begin:end]


def owners_of(indexes: Sequence[Collection[tuple[int, bytes]]], pages: int) -> tuple[list[int], bytearray]:
    """Return which index has the newest of each page (the first is unused), and the digests of all pages.

    Raises ValueError if a page is missing.
    """
    owners, digests = [-1] * (pages + 1), bytearray(pages * _DIGEST)
    for place, index in enumerate(indexes):
        for number, digest in index:
            if number <= pages:
                owners[number] = place
                digests[(number - 1) * _DIGEST : number * _DIGEST] = digest
    if -1 in owners[1:]:
        raise ValueError(f"page {owners.index(-1, 1)} is missing")
    return owners, digests
