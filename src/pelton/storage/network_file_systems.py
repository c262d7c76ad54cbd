"""Where a store may be: refuses network file systems and files mounted by themselves, if it can detect them.

SQLite's WAL keeps its index in memory shared between the processes of one host. On a network file system two hosts
would each have their own, and the file would be destroyed. The log is beside the file that it belongs to: a mount of
the file alone, as with containers, leaves it behind. Linux lists mounts in ``/proc/self/mountinfo``; on other systems
nothing is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from pelton.storage.faults import Fault

_NETWORK_KINDS: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "ceph",
        "lustre",
        "glusterfs",
        "fuse.sshfs",
        "fuse.glusterfs",
    }
)
_MOUNTS: Final = "/proc/self/mountinfo"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


class Mount(msgspec.Struct, frozen=True):
    """The mount point of a file system, and its kind."""

    point: str
    kind: str


def mounts_in(mountinfo: str) -> list[Mount]:
    """Return the mounts of a mountinfo table, the latest last."""
    found = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) >= 5 and right:
            point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
            found.append(Mount(point, right.split()[0]))
    return found


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount:
    best = Mount("", "")
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best


def obstacle_at(path: str) -> str | None:
    """Return the reason why a store may not be at ``path``; None if it may, or if that is unknown."""
    path = os.path.realpath(path)
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as table:
            mount = mount_of(path, mounts_in(table.read()))
    except OSError:
        return None
    if mount.kind in _NETWORK_KINDS:
        kind = mount.kind
        return f"the file is on a network file system ({kind}); several hosts would corrupt it. Use a local disk"
    if mount.point == path and os.path.isfile(path):
        return (
            "the file is mounted by itself, so that its log, which is part of the data, would be outside of the mount "
            "and be lost: mount the folder of the store instead"
        )
    return None


def check_place(path: str) -> None:
    """Raise a :class:`Fault` if a store cannot be at ``path``, before anything is created there."""
    check_mount(path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise Fault("settings", path, f"the folder {folder} does not exist; create it first")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        # Check before SQLite opens it, which would leave behind a log as read-only as the file.
        raise read_only(path, "file", path)


def check_mount(path: str) -> None:
    """Raise a :class:`Fault` if a store cannot be at ``path``, not even to be read."""
    obstacle = obstacle_at(path)
    if obstacle is not None:
        raise Fault("settings", path, obstacle)
    if os.path.isdir(path):
        raise Fault("foreign", path, "this is a folder; name a file")


def read_only(path: str, kind: str, place: str) -> Fault:
    """Return the fault for the store at ``path`` whose file or folder (``kind``) this user may not write."""
    detail = f"the {kind} {place} is read-only for this user; pelton.open(path, read_only=True) reads it"
    return Fault("read_only", path, detail)
