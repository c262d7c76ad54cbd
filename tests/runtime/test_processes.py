"""Whether a process of this machine has ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pelton.runtime import ProcessWatch
from pelton.runtime.processes import ProcessIdentity, has_ended, own_identity

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a process started")

_PROGRAM = """
from pelton.runtime.processes import own_identity
print(*own_identity(), flush=True)
input()
"""


def child() -> tuple[subprocess.Popen[str], ProcessIdentity]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    host, pid, started = process.stdout.readline().split()
    return process, ProcessIdentity(host, int(pid), int(started))


def test_a_process_that_is_killed_has_ended_before_its_parent_looks() -> None:
    process, identity = child()
    with process:
        own = own_identity()
        assert own is not None
        assert own.host == identity.host
        assert own != identity
        assert not has_ended(identity)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(identity), "it is a zombie"
    assert has_ended(identity), "its number is free"


def test_another_process_of_the_same_number_is_another_one() -> None:
    own = own_identity()
    assert own is not None
    assert not has_ended(own)
    assert has_ended(own._replace(started=own.started - 1))
    assert not has_ended(own._replace(started=own.started - 1, host="another")), "it can't be known"


def test_a_fork_is_another_process() -> None:
    own = own_identity()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if own_identity() not in (None, own) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_process_of_another_user_is_not_taken_for_one_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_identity()
    assert own is not None

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    # What /proc shows of it depends on how it is mounted.
    monkeypatch.setattr(os, "kill", refuse)
    assert not has_ended(own._replace(started=own.started - 1))


def test_what_runs_is_looked_at_again_and_what_has_ended_is_not() -> None:
    looks = list[ProcessIdentity]()

    def has_ended_at_last(process: ProcessIdentity) -> bool:
        looks.append(process)
        return len(looks) > 2

    watch = ProcessWatch(has_ended_at_last)
    assert watch.own is not None
    other = watch.own._replace(started=0)
    found = [watch.is_gone(other, 100 + tenths / 10) for tenths in range(40)]
    assert found.index(True) == 9
    assert all(found[9:])
    assert looks == [other] * 3
    assert not watch.is_gone(watch.own, 200.0)
    assert not watch.is_gone(None, 200.0)
