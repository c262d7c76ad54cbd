"""The command itself: its imports, its name, and that stored data cannot send control codes to a terminal."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pelton
from pelton.api.wording import ERROR_WORDS, text_for_people, visible_text
from pelton.cli.completion_command import _inner
from pelton.cli.main import COMMANDS, main, parser
from pelton.cli.output import write_logs
from pelton.server.settings.options import FLAGS
from tests.test_imports import loaded_by, ours

EVIL = "a\x1b]0;owned\x07\x9b2J\r\u202eb\nc"


def test_help_loads_no_command_and_nothing_that_commands_need() -> None:
    modules = loaded_by(
        "from pelton.cli.main import main\n"
        "import contextlib, io\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])"
    )
    assert ours(modules) == {"pelton", "pelton._version", "pelton.cli", "pelton.cli.main"}


def test_a_command_loads_no_other_family(capsys: pytest.CaptureFixture[str]) -> None:
    modules = loaded_by(
        "from pelton.cli.main import main\n"
        "import contextlib, io\n"
        "with contextlib.redirect_stderr(io.StringIO()): main(['verify', 'nowhere.pelton'])"
    )
    commands = {name for name in modules if name.endswith(("_command", "_commands"))}
    assert commands == {"pelton.cli.store_commands"}
    assert not {name for name in ours(modules) if name.split(".")[1:2] in (["queue"], ["locks"], ["cluster"])}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: pelton {name}" in shown
    assert not re.search(r"`|\*\*", shown), "a terminal shows no markup"
    assert callable(parser(name).parse_args)


@pytest.mark.parametrize("command", [["-m", "pelton"], ["-m", "pelton.cli.main"]])
def test_it_tells_its_version(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"pelton {pelton.__version__}\n"


def test_a_bare_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["queue"], ["pipeline"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(" ".join(["usage: pelton", *words]))


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("quue ls", "queue"),
        ("queue lss", "ls"),
        ("jobs ls a g --sate running", "--state"),
        ("info a --wid", ""),
        ("cron pause a q s --force", ""),
    ],
)
def test_a_mistyped_word_is_told_what_it_may_mean(line: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert (f"did you mean '{near}'?" in capsys.readouterr().err) == bool(near)


def test_every_command_has_json() -> None:
    for name in COMMANDS:
        command = _inner(parser(name))[name]
        for verb, inner in (_inner(command) or {"": command}).items():
            options = [option for action in inner._actions for option in action.option_strings]
            assert "--json" in options or name == "serve", (name, verb)
    assert "json" in FLAGS


def test_a_command_for_files_refuses_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", "nats://127.0.0.1:1"])
    assert "is an address" in capsys.readouterr().err


def test_what_the_library_says_for_programs_is_said_for_people() -> None:
    source = Path(pelton.__file__).parent
    texts = " ".join(path.read_text() for path in source.rglob("*.py") if path.parent.name != "cli")
    joined = re.sub(r'"\s*f?"', "", re.sub(r"\s+", " ", texts)).replace("{made_by}", "create_bucket")
    assert not [text for text in ERROR_WORDS if text.replace("create_objects", "create_bucket") not in joined]
    assert text_for_people(pelton.QueueNotFoundError("x")) == "there is no queue 'x': see 'pelton queue ls'"
    assert not re.search(r"[a-z]_[a-z]|\(\)", "".join(ERROR_WORDS.values()).replace("PELTON_KEY", ""))


def test_a_command_line_that_is_not_understood_is_misused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["nothing"], ["--nothing"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
    assert "usage: pelton" in capsys.readouterr().err


def test_what_cannot_be_printed_is_spelled_out() -> None:
    assert visible_text("plain ü 漢 🚗") == "plain ü 漢 🚗"
    assert visible_text(EVIL) == "a\\x1b]0;owned\\x07\\x9b2J\\r\\u202eb\\nc"
    assert visible_text("\udc80") == "\\udc80"


def _object(*arguments: str) -> int:
    return main(["object", arguments[0], "a.pelton", "files", *arguments[1:]])


def test_names_in_a_store_are_harmless_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pelton.sync.open("a.pelton") as jet:
        files = jet.create_objects("files")
        files.put(EVIL, b"1", description=EVIL, metadata={"m\x1b": "v\x1b"})
    assert _object("ls") == 0
    assert _object("info", EVIL) == 0
    assert _object("get", EVIL, "out\x1b") == 0
    assert _object("get", EVIL + "x", "out") == 1
    assert _object("rm", EVIL) == 0
    written = capsys.readouterr()
    for text in (written.out, written.err):
        assert text
        assert all(char.isprintable() or char == "\n" for char in text), text
    assert "\\x1b]0;owned" in written.out


def test_damaged_names_are_harmless_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil\x1b[2J.pelton").write_bytes(b"no store at all" * 100)
    assert main(["verify", "evil\x1b[2J.pelton"]) == 1
    assert "evil\\x1b[2J.pelton" in capsys.readouterr().err


def test_warnings_are_harmless_on_a_terminal() -> None:
    program = (
        "import logging; from pelton.cli.output import write_logs; write_logs(); "
        f"logging.getLogger('pelton').warning('stream %s', {EVIL!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stderr
    assert "stream a\\x1b]0;owned" in done.stderr
    assert callable(write_logs)
    assert logging.getLogger("pelton").getEffectiveLevel() <= logging.WARNING


def test_an_object_whose_name_names_no_file_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pelton.sync.open("a.pelton") as jet:
        files = jet.create_objects("files")
        for name in ("x/", "..", "y/."):
            files.put(name, b"1")
    for name in ("x/", "..", "y/."):
        assert _object("get", name) == 1
        assert "give FILE" in capsys.readouterr().err
    assert _object("get", "x/", ".") == 1
    assert "folder" in capsys.readouterr().err
    assert _object("get", "x/", "out") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a.pelton", "out"}


def test_a_store_that_is_taken_for_another_word_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def error_of(*words: str) -> str:
        with pytest.raises(SystemExit, match="2"):
            main(words)
        return capsys.readouterr().err

    monkeypatch.delenv("PELTON_STORE", raising=False)
    assert "the store comes first, unless PELTON_STORE names it" in error_of("jobs", "ls", "garage")
    # Its store is an option.
    assert "comes first" not in error_of("work", "shop:jobs")
    monkeypatch.setenv("PELTON_STORE", "shop.pelton")
    assert "PELTON_STORE names the store, 'shop.pelton'" in error_of("jobs", "ls", "other", "garage")
    assert "PELTON_STORE" not in error_of("jobs", "show", "garage")
    assert "PELTON_STORE names" not in error_of("jobs", "ls", "garage", "--stat", "x", "--nosuch")
