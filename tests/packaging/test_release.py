"""A release is a version in its places, and a dated changelog."""

from datetime import date
from pathlib import Path

import pytest

from tools.release import ROOT, ReleaseError, release

DAY = date(2026, 12, 1)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "CHANGELOG.md", "src/pelton/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def test_the_version_is_written_everywhere(tree: Path) -> None:
    release(tree, "7.8.9", DAY)
    assert '\nversion = "7.8.9"\n' in (tree / "pyproject.toml").read_text()
    assert 'VERSION = "7.8.9"' in (tree / "src/pelton/_version.py").read_text()
    assert "\n## 7.8.9 (2026-12-01)\n" in (tree / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("version", ["7", "7.8", "v7.8.9", "7.8.9-1", ""])
def test_what_is_no_version_changes_nothing(tree: Path, version: str) -> None:
    before = (tree / "CHANGELOG.md").read_text()
    with pytest.raises(ReleaseError, match="is not a version"):
        release(tree, version, DAY)
    assert (tree / "CHANGELOG.md").read_text() == before


def test_a_changelog_without_news_is_not_released(tree: Path) -> None:
    release(tree, "7.8.9", DAY)
    with pytest.raises(ReleaseError, match="write down what is new"):
        release(tree, "7.9.0", DAY)
    assert '\nversion = "7.8.9"\n' in (tree / "pyproject.toml").read_text()
