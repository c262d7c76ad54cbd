"""The Markdown and JSON of a report."""

import json
from pathlib import Path

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Contender, Metric
from benchmarks.record import as_data, write
from benchmarks.runner import Outcome
from benchmarks.table import case_section, mark, number, report, summary, table

CASE = Case(
    name="toy",
    title="A toy",
    how="Nothing is done.",
    metrics=(Metric("rate", "msgs/s"), Metric("p50", "ms", 2)),
    contenders=(Contender("us", "ours.toy:run", "fsynced"), Contender("peer", "peers.toy:run", "a|b")),
    asks=(RatioAsk("us", ("peer",), 2),),
)


def outcome() -> Outcome:
    made = Outcome(CASE)
    made.add("us", {"rate": 3000.0, "p50": 0.25})
    made.add("peer", {"rate": 1000.0, "p50": 0.5})
    made.add("us", {"rate": 5000.0, "p50": 0.25})
    made.add("peer", None)
    made.failures["peer"] = "it fell over"
    return made


def test_table_escapes_bars() -> None:
    assert table(("a", "b"), [("1", "x|y")]).splitlines() == ["| a | b |", "| --- | --- |", "| 1 | x\\|y |"]


def test_numbers_and_marks() -> None:
    assert number(1234567.8) == "1,234,568"
    assert number(0.1234, 3) == "0.123"
    assert number(None) == "-"
    assert [mark(met) for met in (True, False, None)] == ["yes", "**no**", "-"]


def test_summary_puts_what_is_asked_beside_what_was_measured() -> None:
    assert summary([outcome()]).splitlines()[2] == "| A toy | us : peer | >= 2x | 3.00x | yes |"


def test_summary_counts_the_rounds_where_they_disagree() -> None:
    made = outcome()
    made.add("us", {"rate": 1000.0})
    made.add("peer", {"rate": 1000.0})
    assert summary([made]).endswith("| 2.00x (1.00x to 3.00x) | yes, in 1 of 2 rounds |")


def test_section_gives_median_range_guarantee_and_failure() -> None:
    section = case_section(outcome())
    assert "| us | 4,000 (3,000 to 5,000) | 0.25 | fsynced |" in section
    assert "| peer | 1,000 | 0.50 | a\\|b |" in section
    assert "Not measured: peer: it fell over" in section


def test_report_holds_the_machine_and_the_fixed_figures() -> None:
    text = report([outcome()], {"cores": 2, "fsync_us": 110.0}, "how it was run")
    assert "| fsync us | 110.0 |" in text
    assert "Go client publish | 175,000" in text
    assert "how it was run" in text


def test_json_keeps_every_round() -> None:
    [case] = as_data([outcome()], {}, "")["cases"]
    assert case["contenders"][1]["metrics"]["rate"] == {"unit": "msgs/s", "median": 1000.0, "rounds": [1000.0, None]}
    assert case["asks"] == [{"what": "us : peer", "asked": ">= 2x", "measured": "3.00x", "met": True, "rounds": (1, 1)}]


def test_both_files_are_written(tmp_path: Path) -> None:
    data, text = write(tmp_path / "deep" / "core", [outcome()], {"cores": 2}, "setting")
    assert json.loads(data.read_text())["machine"] == {"cores": 2}
    assert text.read_text().startswith("# Pelton beside its peers\n")
