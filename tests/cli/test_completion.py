"""``pelton completion``: what the shells complete."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from pelton.cli.main import COMMANDS, main


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["str"], ["stream"]),
        (["stream", "e"], ["edit"]),
        (["consumer", "pa"], ["pause"]),
        (["stream", "purge", "--k"], ["--keep", "--key-file"]),
        (["info", "--j"], ["--json"]),
        (["top", "a.pelton", "--e"], ["--every"]),
        (["stream", "info", "a.pel"], ["a.pelton"]),
    ],
)
def test_bash_completes_commands_verbs_options_and_files(
    words: list[str],
    expected: list[str],
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(str(tmp_path))
    open("a.pelton", "w").close()
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    line = " ".join(["pelton", *words])
    call = f'COMP_WORDS=({line}); COMP_CWORD={len(words)}; _pelton; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{call}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


def test_zsh_uses_the_same_and_fish_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    bash = capsys.readouterr().out
    main(["completion", "zsh"])
    assert capsys.readouterr().out == "autoload -U +X bashcompinit && bashcompinit\n" + bash
    main(["completion", "fish"])
    fish = capsys.readouterr().out
    for name in COMMANDS:
        assert f"-a {name} -d" in fish
    assert "-l last-for" in fish
