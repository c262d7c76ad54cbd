"""Whose turn it is: among priorities, among the tenants that have jobs waiting, and among keys. Pure.

**Priorities.** Jobs of a priority come through a channel of their own, jobs without one through the others. The highest
channel that may have jobs has the turn; after seven of its jobs, one job comes from below, where channels take turns.
So of every 24 jobs at least one is of each priority, as long as there are some. Once so many have ended in a queue, it
is drawn where in its turns a worker begins: so this holds, on average, for workers that end after a job or two.

A channel that had nothing is left out for a moment. As long as no job with a priority is stored, none of their channels
is asked at all.

**Tenants, by their weights.** Stride scheduling. Each tenant that waits has a *pass*, which grows with each of its
starts by a stride, the larger the smaller its weight, and the one with the smallest pass is next; of equal ones, the
one that has waited longest. So in a round, which has as many turns as the weights of all that wait together, each has
as many turns as its weight, give or take one. A tenant that begins to wait joins a stride behind the one that was
served last: it neither makes up for what it left to others, nor does it come before those that wait, however many
others join. Where those begin that wait when a worker takes its first job is drawn, within a stride (``draw``):
otherwise, the same ones would come first with every new worker, and others starve if workers end after a few jobs.

A tenant that had less than was asked of it is left out until it may have more: for a moment, then for longer and
longer. Only tenants that have jobs are remembered. Jobs without a tenant have their turns beside those of tenants, and
are waited for elsewhere: nobody asks for them alone.

**Keys on which a worker can act, where keys are records.** Keys stand in line, one line for each priority: a key in
that of its next job. A key whose job has ended joins the end again, so keys take turns; of the jobs, most come from the
highest priority (`RankBypass`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from pelton.queue.model.naming import HIGHEST_PRIORITY
from pelton.runtime import BYPASS, RankBypass

if TYPE_CHECKING:
    from pelton.runtime import Random

_EMPTY_FOR_S: Final = 0.02
_QUIET_FOR_S: Final = 0.5
FIRST_JOBS: Final = 24
"""Once a queue has had this many jobs, a worker begins its turns at a place drawn by chance."""


class RankTurn(NamedTuple):
    """The channel to ask now, and for how many jobs at most.

    ``waits``: whether it may be waited for. ``is_below``: a higher one may have jobs.
    """

    channel: str
    most: int
    waits: bool = False
    is_below: bool = False


class RankTurns:
    """The turns of one worker. ``ranked`` are the channels of jobs with a priority, highest first, ``plain`` others.

    Times in seconds since boot.
    """

    def __init__(self, ranked: Sequence[str], plain: Sequence[str]) -> None:
        self._ranked = ranked
        self._plain = plain
        self._empty_until: dict[str, float] = {}
        self._awaited: set[str] = set()
        # Until when no job with a priority is expected, and until when that need not be checked.
        self._quiet_until = self._sure_until = 0.0
        # Jobs that came from the highest channel since the last one from below, and which of them is the lowest that
        # was the highest; when channels below had turns.
        self._owed = 0
        self._passing = 0
        self._served: dict[str, float] = dict.fromkeys((*ranked, *plain), 0)
        self._count = 0

    def draw(self, random: Random) -> None:
        """Begin anywhere in the turns."""
        self._owed = int(random.random() * BYPASS)
        self._served = {name: random.random() for name in self._served}

    def is_unsure(self, now: float) -> bool:
        """Whether to find out if there are jobs with a priority: nobody waits for them, and it is some time ago."""
        return now >= self._sure_until and len(self._awaited) < len(self._ranked)

    def note_ranked(self, has_ranked: bool, now: float) -> None:
        """Note whether there are jobs with a priority."""
        self._sure_until = now + _QUIET_FOR_S
        self._quiet_until = 0.0 if has_ranked else self._sure_until
        self._empty_until.clear()

    def doubt(self) -> None:
        """Forget what may have changed: a job can have come at any time."""
        self._empty_until.clear()
        self._quiet_until = self._sure_until = 0.0

    def awaits(self, channel: str) -> None:
        """Note that a pull waits for the jobs of a channel: so it has none."""
        self._awaited.add(channel)

    def next(self, channel: str, wanted: int, now: float) -> RankTurn:
        """Return the next turn for a fetch by ``channel``, which has no priority (all of those may be empty)."""
        ranked = self._waiting(now)
        if not ranked:
            return RankTurn(channel, wanted, waits=True)
        top, below = ranked[0], ranked[1:]
        if channel:
            # Each of them, whoever asks: otherwise one that has nothing could use up the turns of another one.
            below += [name for name in self._plain if not self._is_empty(name, now)]
        if not below:
            self._owed = 0
            return RankTurn(top, wanted)
        # One that was itself the highest when these were taken has had its jobs, and is not owed any.
        waiting = [name for name in below if self._place(name) > self._passing]
        if waiting and self._owed >= BYPASS - 1:
            least = min(waiting, key=lambda name: self._served[name])
            return RankTurn(least, min(wanted, self._owed // (BYPASS - 1)), is_below=True)
        return RankTurn(top, max(wanted - wanted // BYPASS, 1))

    def note_answer(self, channel: str, found: int, now: float, *, is_below: bool = False) -> None:
        """Note how many jobs a channel had; ``is_below``: as its turn said."""
        self._awaited.discard(channel)
        if is_below:
            # An empty channel uses up its turn as well: otherwise it would be asked again at once.
            self._count += 1
            self._served[channel] = self._count
        if not found:
            self._empty_until[channel] = now + _EMPTY_FOR_S
            return
        self._empty_until.pop(channel, None)
        if channel in self._ranked:
            self._quiet_until = 0.0
        if is_below:
            self._owed = max(self._owed - found * (BYPASS - 1), 0)
        elif channel in self._ranked:
            self._passing = max(self._passing, self._place(channel)) if self._owed else self._place(channel)
            self._owed += found

    def _place(self, channel: str) -> int:
        """Return a channel's place from the highest on; those without a priority share the last one."""
        return self._ranked.index(channel) if channel in self._ranked else len(self._ranked)

    def _waiting(self, now: float) -> list[str]:
        """Return the channels of priorities that may have jobs, the highest first."""
        if now < self._quiet_until:
            return []
        return [name for name in self._ranked if name not in self._awaited and not self._is_empty(name, now)]

    def _is_empty(self, channel: str, now: float) -> bool:
        return now < self._empty_until.get(channel, 0.0)


J = TypeVar("J")
STRIDE: Final = 720_720_000
"""How far a start takes a tenant of weight 1."""
FIRST_PAUSE_S: Final = 0.02
"""How long a tenant is left out that had nothing, at first."""
_LONGEST_PAUSE_S: Final = 1.0


class _TenantTurn(NamedTuple):
    """A tenant that waits: the smallest is next. ``entered`` tells those with the same pass apart."""

    reached: int
    entered: int
    tenant: str


class _TenantLook(NamedTuple):
    """When a tenant that had nothing may have jobs again, in seconds since boot."""

    due: float
    tenant: str


class _TenantLine:
    """One tenant: when it may have jobs (0: it waits), for how long it was left out, how many jobs were seen."""

    __slots__ = ("due", "entered", "pause", "seen")

    def __init__(self) -> None:
        self.due = inf
        self.pause = 0.0
        self.seen = 0
        self.entered = 0


class TenantTurns:
    """The turns of one worker, for jobs of one priority. Times in seconds since boot.

    ``weights`` are those of the tenants; others have weight 1. Jobs without a tenant are those of the tenant "".
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = weights
        self._chance: Random | None = None
        self._lines = {"": _TenantLine()}
        # How many are remembered: those that have jobs, as far as is known.
        self.tenants: int = 0
        self._waiting: list[_TenantTurn] = []
        self._later: list[_TenantLook] = []
        self._reached = 0
        self._entered = 0
        self.note_enqueued([""])

    # --- what is learned

    def note_enqueued(self, tenants: Iterable[str]) -> None:
        """Note that these have jobs now."""
        for tenant in tenants:
            self._enter(tenant, self._lines.setdefault(tenant, _TenantLine()))
        self.tenants = len(self._lines) - 1

    def note_counts(self, counts: Mapping[str, int], *, anew: bool) -> None:
        """Note how many jobs each tenant has that have not ended: those that are not named have none.

        ``anew``: any of them may wait, else only those that have more than before.
        """
        for tenant in [name for name in self._lines if name and name not in counts]:
            del self._lines[tenant]
        for tenant, count in counts.items():
            line = self._lines.setdefault(tenant, _TenantLine())
            if anew or count > line.seen:
                self._enter(tenant, line)
            line.seen = count
        self.tenants = len(self._lines) - 1
        self._tidy()

    def note_retry(self, tenant: str, due: float) -> None:
        """Note that a job of a tenant waits for its retry until then."""
        line = self._lines.setdefault(tenant, _TenantLine())
        self.tenants = len(self._lines) - 1
        if due < line.due:
            self._look(tenant, line, due)

    def note_answer(self, asked: Counter[str], found: Mapping[str, Sequence[object]], now: float) -> None:
        """Note what each tenant had of the jobs that a plan had asked it for."""
        for tenant, count in asked.items():
            line = self._lines.get(tenant)
            if line is None:
                continue
            got = len(found.get(tenant, ()))
            if got:
                line.pause = 0.0
            if got < count:
                line.pause = min(line.pause * 2, _LONGEST_PAUSE_S) if line.pause and tenant else FIRST_PAUSE_S
                self._look(tenant, line, now + line.pause)

    def draw(self, random: Random) -> None:
        """Draw, at the first plan, where those begin that wait."""
        self._chance = random

    # --- whose turn it is

    def plan(self, wanted: int, now: float) -> list[str]:
        """Return whose jobs are next, in order: each time a tenant is named it is for one job."""
        self._wake(now)
        if self._chance is not None:
            self._begin(self._chance)
            self._chance = None
        tenants: list[str] = []
        while len(tenants) < wanted and self._is_waiting:
            turn = heappop(self._waiting)
            self._reached = turn.reached
            self._go_on(turn.tenant, self._lines[turn.tenant])
            tenants.append(turn.tenant)
        return tenants

    def next_due(self) -> float:
        """Return when a tenant is to be asked, if nothing happens; infinity: never.

        Jobs without a tenant do not count: a pull waits for them.
        """
        if self._is_waiting and any(turn.tenant and self._is_current(turn) for turn in self._waiting):
            return 0.0
        while self._later and not self._is_due(self._later[0]):
            heappop(self._later)
        return self._later[0].due if self._later else inf

    # --- inside

    def _begin(self, random: Random) -> None:
        self._waiting = [
            turn._replace(reached=int(turn.reached * random.random()))
            for turn in self._waiting
            if self._is_current(turn)
        ]
        heapify(self._waiting)

    def _enter(self, tenant: str, line: _TenantLine) -> None:
        line.pause = 0.0
        if line.due:
            line.due = 0.0
            self._go_on(tenant, line)

    def _go_on(self, tenant: str, line: _TenantLine) -> None:
        self._entered = line.entered = self._entered + 1
        reached = self._reached + STRIDE // self._weights.get(tenant, 1)
        heappush(self._waiting, _TenantTurn(reached, line.entered, tenant))

    def _look(self, tenant: str, line: _TenantLine, due: float) -> None:
        line.due = due
        if tenant:
            heappush(self._later, _TenantLook(due, tenant))

    def _wake(self, now: float) -> None:
        if 0 < (own := self._lines[""]).due <= now:
            self._enter("", own)
        while self._later and self._later[0].due <= now:
            look = heappop(self._later)
            if self._is_due(look):
                line = self._lines[look.tenant]
                line.due = 0.0
                self._go_on(look.tenant, line)

    @property
    def _is_waiting(self) -> bool:
        while self._waiting and not self._is_current(self._waiting[0]):
            heappop(self._waiting)
        return bool(self._waiting)

    def _is_current(self, turn: _TenantTurn) -> bool:
        line = self._lines.get(turn.tenant)
        return line is not None and not line.due and line.entered == turn.entered

    def _is_due(self, look: _TenantLook) -> bool:
        line = self._lines.get(look.tenant)
        return line is not None and 0 < line.due == look.due

    def _tidy(self) -> None:
        """Drop what is out of date, so that it takes no more memory than the tenants that are remembered."""
        most = 2 * len(self._lines) + 16
        if len(self._waiting) > most:
            self._waiting = [turn for turn in self._waiting if self._is_current(turn)]
            heapify(self._waiting)
        if len(self._later) > most:
            self._later = [look for look in self._later if self._is_due(look)]
            heapify(self._later)


def in_order(plan: Iterable[str], found: Mapping[str, Sequence[J]]) -> list[J]:
    """Return the jobs that were found, in the order of the plan."""
    left = {tenant: iter(jobs) for tenant, jobs in found.items()}
    return [job for tenant in plan for job in (next(left[tenant], None),) if job is not None]


_SPREAD: Final = 64


class _KeyLine:
    """Keys of one priority, in rounds: all that stood in line when it began are taken once.

    Within a round they are taken at random, so that workers with the same view do not all try the same key.
    """

    def __init__(self) -> None:
        # Taken from its beginning again and again, which is slow with a dict. The values count those that had joined.
        self._keys: OrderedDict[str, int] = OrderedDict()
        self._joined = self._round_end = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def join(self, key: str) -> None:
        if key not in self._keys:
            self._keys[key] = self._joined
            self._joined += 1

    def leave(self, key: str) -> None:
        self._keys.pop(key, None)

    def take(self, number: int, random: Random) -> list[str]:
        keys: list[str] = []
        while len(keys) < number and self._keys:
            oldest = list(islice(self._keys.items(), max(number - len(keys), _SPREAD)))
            if oldest[0][1] >= self._round_end:
                self._round_end = self._joined
            mine = [key for key, place in oldest if place < self._round_end]
            taken = random.sample(mine, min(number - len(keys), len(mine)))
            for key in taken:
                self.leave(key)
            keys += taken
        return keys


class KeyTurns:
    """The keys on which one worker can act, in the order in which they are next."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._lines = [_KeyLine() for _ in range(HIGHEST_PRIORITY + 1)]
        # The priority of the line in which a key stands.
        self._priorities: dict[str, int] = {}
        self._bypass = RankBypass()

    def __contains__(self, key: str) -> bool:
        return key in self._priorities

    def draw(self) -> None:
        """Begin anywhere in the turns of priorities, so that workers that end after a few jobs leave none out."""
        self._bypass = RankBypass(self._random.randrange(BYPASS), self._random.randrange(HIGHEST_PRIORITY + 1))

    def join(self, key: str, priority: int) -> None:
        """Let a key stand in the line of a priority; it keeps its place if it stands there."""
        if self._priorities.get(key) != priority:
            self.leave(key)
            self._priorities[key] = priority
            self._lines[priority].join(key)

    def leave(self, key: str) -> None:
        """Let a key stand in line no longer."""
        if (priority := self._priorities.pop(key, None)) is not None:
            self._lines[priority].leave(key)

    def take(self, limit: int) -> list[str]:
        """Return whose turn it is, and let them leave."""
        keys: list[str] = []
        for priority, number in self._numbers(limit).items():
            keys += self._lines[priority].take(number, self._random)
        for key in keys:
            del self._priorities[key]
        return keys

    def _numbers(self, limit: int) -> Counter[int]:
        """Return how many of each priority are next."""
        waiting = {priority: len(line) for priority, line in enumerate(self._lines)}
        numbers = Counter[int]()
        for _ in range(min(limit, len(self._priorities))):
            priority = self._bypass.next(waiting)
            self._bypass = self._bypass.after(priority, waiting)
            waiting[priority] -= 1
            numbers[priority] += 1
        return numbers
