"""Where a store may lie: network file systems are refused where they can be told.

SQLite's WAL keeps its index in memory shared between the processes of one host. On a network file system two
hosts would each have their own, and the file would be destroyed. Linux tells the kind of file system in
``/proc/self/mountinfo``; elsewhere nothing is refused.
"""

from __future__ import annotations

import os
from typing import Final

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


def file_system_of(path: str, mountinfo: str) -> str:
    """Return the kind of the file system that holds ``path``, by the text of a mountinfo table."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = fields[4].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def network_kind(path: str) -> str | None:
    """Return the kind of network file system under ``path``, or None where there is none or it can't be told."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="replace") as table:
            kind = file_system_of(os.path.realpath(path), table.read())
    except OSError:
        return None
    return kind if kind in _NETWORK_KINDS else None
