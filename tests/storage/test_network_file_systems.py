"""Network file systems are recognized by the mount table."""

from __future__ import annotations

from pathlib import Path

import pytest

from pelton.storage import Database, Fault, network_file_systems
from pelton.storage.network_file_systems import mount_of, mounts_in, obstacle_at

_TABLE = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /mnt/share rw,relatime shared:5 master:2 - nfs4 server:/export rw,vers=4.2
31 30 0:26 / /mnt/share/local rw - xfs /dev/vdb rw
32 22 0:27 / /mnt/with\\040space rw - cifs //host/share rw
33 22 0:28 / /mnt/over rw - ext4 /dev/vdc rw
34 22 0:29 / /mnt/over rw - fuse.sshfs user@host: rw
a line that says nothing
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/a.pelton", "ext4"),
        ("/mnt/share/a.pelton", "nfs4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/shared/a.pelton", "ext4"),
        ("/mnt/share/local/deep/a.pelton", "xfs"),
        ("/mnt/with space/a.pelton", "cifs"),
        ("/mnt/over/a.pelton", "fuse.sshfs"),
    ],
)
def test_the_innermost_and_latest_mount_counts(path: str, kind: str) -> None:
    assert mount_of(path, mounts_in(_TABLE)).kind == kind


def test_an_empty_table_tells_nothing() -> None:
    assert mount_of("/a", mounts_in("")).kind == ""


def test_here_nothing_is_refused(tmp_path: object) -> None:
    assert obstacle_at(f"{tmp_path}/a.pelton") is None


def test_a_store_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"{_TABLE}35 22 0:30 / {tmp_path} rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(network_file_systems, "_MOUNTS", str(table))
    with pytest.raises(Fault, match=r"network file system \(nfs4\)") as caught:
        Database(f"{tmp_path}/a.pelton")
    assert caught.value.kind == "settings"
