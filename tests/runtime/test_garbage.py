"""Full collections look at what is new, and once an hour at everything."""

from __future__ import annotations

import gc
import weakref

from pelton.runtime.processes import ShortCollections


class Knot:
    """An object in a cycle: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_survives_is_looked_at_once_an_hour() -> None:
    now = 0.0
    with ShortCollections(lambda: now):
        knot = Knot()
        seen = weakref.ref(knot)
        young = weakref.ref(Knot())
        gc.collect()
        assert young() is None
        frozen = gc.get_freeze_count()
        assert frozen > 0
        del knot
        gc.collect()
        assert seen() is not None  # it was not looked at: that takes long if there are many
        now = 3600.0
        gc.collect()
        gc.collect()
        assert seen() is None
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
