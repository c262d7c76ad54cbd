"""The summary of a test run: tests that passed only at the second try, counted."""

from __future__ import annotations

from typing import Final

import pytest

SECOND_TRY: Final = "second try"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print and count the tests that were retried, with the reason: they need fixing."""
    again = [
        f"{report.nodeid}: {why}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, why in report.user_properties
        if name == SECOND_TRY
    ]
    terminalreporter.write_line(f"tried again within a test: {len(again)}")
    for line in again:
        terminalreporter.write_line(f"  {line}")
