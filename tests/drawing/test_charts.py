"""Charts are well-formed, show their figures, and handle empty data and strange names."""

from datetime import datetime, timedelta
from xml.etree import ElementTree

from pelton.drawing.charts import bars, columns, curves

STEP = timedelta(seconds=10)
STARTS = [datetime(2024, 1, 1) + n * STEP for n in range(3)]


def texts(chart: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(chart).iter()]


def test_columns_are_stacked() -> None:
    chart = columns(STARTS, STEP, {"done": [1.0, 2.0, 0.0], "failed": [0.0, 2.0, 1.0]}, "work")
    rects = [tag for tag in ElementTree.fromstring(chart).iter("rect") if len(tag)]
    assert len(rects) == 4
    done, failed = (rect for rect in rects if "00:00:10" in (rect[0].text or ""))
    foot = float(failed.attrib["y"]) + float(failed.attrib["height"])
    assert abs(foot - float(done.attrib["y"])) < 0.1
    assert "2024-01-01 00:00:10: 2 failed" in texts(chart)


def test_a_curve_has_a_point_a_step() -> None:
    chart = curves(STARTS, STEP, {"p50": [0.0, 0.0, 0.0], "p99": [1.0, 5.0, 2.0]}, "waits")
    assert len(list(ElementTree.fromstring(chart).iter("circle"))) == 6
    assert "2024-01-01 00:00:10: p99 5" in texts(chart)


def test_axes_tell_the_unit_and_round_moments() -> None:
    chart = curves(STARTS, STEP, {"p50": [1.0, 5.0, 2.0]}, "waits", "ms")
    assert {"0 ms", "4 ms", "00:00:10", "2024-01-01 00:00:10: p50 5 ms"} <= set(texts(chart))


def test_bars_are_as_long_as_their_values_and_names_are_escaped() -> None:
    chart = bars([("a & <b>", 10.0, "ten"), ("c" * 100, 5.0, "five")], "names")
    longer, shorter = (float(rect.attrib["width"]) for rect in ElementTree.fromstring(chart).iter("rect"))
    assert abs(longer - 2 * shorter) < 0.1
    assert {"a & <b>", "ten", "five", "c" * 100} <= set(texts(chart))


def test_nothing_is_drawn_of_nothing() -> None:
    assert columns([], STEP, {}, "") == curves([], STEP, {}, "") == bars([], "") == ""
