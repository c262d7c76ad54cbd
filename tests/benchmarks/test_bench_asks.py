"""The benchmarks' requirements, and their verdicts."""

from benchmarks.asks import FloorAsk, LimitAsk, RatioAsk, ReferenceAsk, Verdict
from benchmarks.references import Reference

ROUNDS = {
    "us": {"rate": [200.0, 220.0, 180.0], "p50": [0.5, 0.9, 0.7]},
    "peer": {"rate": [100.0, 100.0, 100.0]},
    "broken": {"rate": [None, None, None]},
}
ELSEWHERE = Reference("elsewhere", 160, "msgs/s", "another machine")


def test_ratio_is_met_at_the_bound_and_missed_above_it() -> None:
    assert RatioAsk("us", ("peer",), 2).judge(ROUNDS) == Verdict(
        "us : peer", ">= 2x", "2.00x (1.80x to 2.20x)", True, (2, 3)
    )
    assert RatioAsk("us", ("peer",), 2.5).judge(ROUNDS).met is False


def test_ratio_without_a_bound_only_tells() -> None:
    assert RatioAsk("us", ("peer",), None).judge(ROUNDS) == Verdict(
        "us : peer", "(told)", "2.00x (1.80x to 2.20x)", None
    )


def test_ratio_names_several_peers_and_a_metric_other_than_the_rate() -> None:
    verdict = RatioAsk("us", ("peer", "broken"), 1, "drain").judge(ROUNDS)
    assert verdict == Verdict("us : peer; broken (drain)", ">= 1x", "not measured", None)
    assert RatioAsk("us", ("peer", "broken"), 1, label="the best").judge(ROUNDS).what == "us : the best"


def test_what_failed_is_not_measured_and_not_met() -> None:
    assert RatioAsk("broken", ("peer",), 1).judge(ROUNDS).measured == "not measured"
    assert RatioAsk("us", ("broken",), 1).judge(ROUNDS).met is None
    assert LimitAsk("broken", 1, "rate", "ms").judge(ROUNDS).met is None
    assert ReferenceAsk("absent", ELSEWHERE, 1).judge(ROUNDS).met is None


def test_reference_compares_the_median_with_the_fixed_figure() -> None:
    verdict = ReferenceAsk("us", ELSEWHERE, 1.3).judge(ROUNDS)
    assert verdict == Verdict("us : elsewhere (fixed figure)", ">= 1.3x", "1.25x (1.12x to 1.38x)", False, (1, 3))


def test_limit_is_met_from_below() -> None:
    assert LimitAsk("us", 1, "p50", "ms").judge(ROUNDS) == Verdict(
        "us, p50", "<= 1 ms", "0.7 ms (0.5 ms to 0.9 ms)", True, (3, 3)
    )
    assert LimitAsk("us", 0.6, "p50", "ms").judge(ROUNDS).met is False


def test_floor_is_met_at_the_floor_and_missed_below_it() -> None:
    assert FloorAsk("us", 200, "rate", "/s").judge(ROUNDS) == Verdict(
        "us, rate", ">= 200/s", "200/s (180/s to 220/s)", True, (2, 3)
    )
    assert FloorAsk("us", 201, "rate", "/s").judge(ROUNDS).met is False
    assert FloorAsk("broken", 1, "rate", "/s").judge(ROUNDS).met is None
