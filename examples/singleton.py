"""A program that runs only one instance at a time, without a lock file that a crash would leave behind.

Prints::

    the first one runs
    the second one: another instance runs already
    the third one runs
"""

import pelton


def run(name: str, jet: pelton.sync.Jet) -> pelton.sync.LockLease | None:
    held = jet.lock("nightly-report", ttl=30).try_acquire()
    print(f"{name} runs" if held else f"{name}: another instance runs already")
    return held


with pelton.sync.open("report.pelton") as jet, pelton.sync.open("report.pelton") as other:
    held = run("the first one", jet)
    run("the second one", other)
    if held is not None:
        held.release()  # or the process ends, and 30 seconds pass
    run("the third one", other)
