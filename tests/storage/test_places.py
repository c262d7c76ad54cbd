"""Network file systems are told by the table of mounts."""

from __future__ import annotations

import pytest

from pelton.storage import Database, Fault, database
from pelton.storage.places import file_system_of, network_kind

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
    assert file_system_of(path, _TABLE) == kind


def test_an_empty_table_tells_nothing() -> None:
    assert file_system_of("/a", "") == ""


def test_here_nothing_is_refused(tmp_path: object) -> None:
    assert network_kind(f"{tmp_path}/a.pelton") is None


def test_a_store_on_a_network_file_system_is_refused(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "network_kind", lambda path: "nfs4")
    with pytest.raises(Fault, match=r"network file system \(nfs4\)") as caught:
        Database(f"{tmp_path}/a.pelton")
    assert caught.value.kind == "settings"
