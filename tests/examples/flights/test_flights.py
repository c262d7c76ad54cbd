"""The input: complete, in time order, bad rows kept."""

from __future__ import annotations

import zipfile
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from examples.flights import flights as module
from examples.flights.flights import (
    BadFlightError,
    Flight,
    MissingDataError,
    read_carriers,
    read_flights,
    read_planes,
)

from .simulated import flight

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)
ROWS = [
    "2013,10,1,NA,1545,NA,NA,1700,NA,UA,9,NA,EWR,IAH,NA,1400,15,45,2013-10-01T19:00:00Z",
    "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    "2013,1,1,517,515,-3,830,819,NA,AA,2000,N9,JFK,MIA,227,1089,5,15,2013-01-01T10:00:00Z",
    "2013,1,1,517,515,2,830,819,11,UA,7,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("flights.csv", "\n".join([HEADER, *ROWS]) + "\n")
    return path


@pytest.fixture(scope="module")
def year() -> list[Flight]:
    return read_flights()


def test_the_year_is_complete(year: list[Flight]) -> None:
    assert len(year) == 336_776
    assert sum(one.tailnum is None for one in year) == 2_512
    assert len({one.tailnum for one in year} - {None}) == 4_043
    assert [one.index for one in year] == list(range(len(year)))


def test_the_year_is_in_time_order_without_ties(year: list[Flight]) -> None:
    assert all((a.sched, a.carrier, a.number) < (b.sched, b.carrier, b.number) for a, b in pairwise(year))


def test_every_tail_number_is_a_literal_subject_token(year: list[Flight]) -> None:
    assert all(one.tailnum.isalnum() for one in year if one.tailnum is not None)


def test_ties_go_by_carrier_then_number(archive: Path) -> None:
    assert [one.name for one in read_flights(path=archive)] == ["AA2000", "UA7", "UA1545", "UA9"]


def test_fields_are_read(archive: Path) -> None:
    first, *_, last = read_flights(path=archive)
    assert (first.tailnum, first.dep_delay, first.arr_delay, first.distance) == ("N9", -3, None, 1089)
    assert (first.hour, first.day.isoformat(), first.sched - first.local) == (5, "2013-01-01", 300)
    assert (last.tailnum, last.cancelled, last.hour, last.sched - last.local) == (None, True, 15, 240)


def test_limit_takes_the_first_in_time(archive: Path) -> None:
    assert read_flights(2, archive) == read_flights(path=archive)[:2]
    assert read_flights(0, archive) == []
    assert len(read_flights(99, archive)) == 4
    with pytest.raises(ValueError, match="negative"):
        read_flights(-1, archive)


def test_a_flight_travels_as_a_few_bytes() -> None:
    one = flight(336_775, None, dep_delay=None, arr_delay=None)
    data = msgspec.msgpack.encode(one)
    assert msgspec.msgpack.decode(data, type=Flight) == one
    assert len(data) < 60


def test_a_flight_without_aircraft_says_so() -> None:
    assert flight(3, "N3").aircraft() == "N3"
    with pytest.raises(BadFlightError, match=r"UA103 \(number 3 of the input\): no aircraft"):
        flight(3, None).aircraft()


def test_missing_package_tells_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACKAGE", "no_such_package_of_flights")
    with pytest.raises(MissingDataError, match="no_such_package_of_flights"):
        read_flights()


def test_planes_and_carriers() -> None:
    planes = read_planes()
    assert len(planes) > 3_000
    assert planes["N292JB"] == ("Embraer", "ERJ 190-100 IGW", 2008)
    assert planes["N238JB"].year is None
    assert read_carriers()["UA"] == "United Air Lines Inc."
