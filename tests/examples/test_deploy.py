"""The files of ``examples/deploy`` that people copy: they can be read, call what there is, and stop jobs in order."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from pelton.cli.main import parser, words_with_store

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
UNITS = sorted((FOLDER / "systemd").iterdir())
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
GUIDE = FOLDER.parents[1] / "docs/guides/operating/operating.md"


def unit(path: Path) -> ConfigParser:
    found = ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[method-assign,assignment]
    found.read_string(path.read_text())
    return found


def dockerfile() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (FOLDER / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def stateful_set() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "kustomize/statefulset.yaml").read_text())
    return found


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every ``pelton`` that is called, with its words, and where."""
    yield "Dockerfile", json.loads(dict(dockerfile())["CMD"])
    for name, service in COMPOSE["services"].items():
        yield f"compose {name}", service["command"]
    for container in stateful_set()["spec"]["template"]["spec"]["containers"]:
        yield f"pod {container['name']}", container["args"]
    for path in UNITS:
        if path.suffix == ".service":
            for call in re.findall(r"(?:/bin/pelton|\"\$PELTON\") ([^;|]+)", unit(path)["Service"]["ExecStart"]):
                yield path.name, ["pelton", *shlex.split(call)]


@pytest.mark.parametrize(("where", "words"), list(commands()), ids=lambda each: each if isinstance(each, str) else "")
def test_what_is_called_is_there(where: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_STORE", "/data/shop.pelton")
    assert words[0] == "pelton"
    options = parser(words[1]).parse_args(words_with_store(words[1:]))
    if words[1] == "work":
        assert options.grace < stop_time(where)


def stop_time(where: str) -> float:
    """In how many seconds the worker is killed after it was told to stop."""
    if where.startswith("compose"):
        return float(COMPOSE["services"][where.split()[1]]["stop_grace_period"].removesuffix("s"))
    if where.startswith("pod"):
        return float(stateful_set()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
    if where == "Dockerfile":
        return float("inf")
    return float(unit(FOLDER / "systemd" / where)["Service"]["TimeoutStopSec"])


def test_the_image() -> None:
    steps = dockerfile()
    words = [word for word, _ in steps]
    assert re.fullmatch(r"python:3\.\d+-slim", dict(steps)["FROM"]), "a version, and not the latest"
    assert "ADD" not in words
    assert words.index("USER") > max(place for place, word in enumerate(words) if word == "RUN")
    assert dict(steps)["USER"] not in ("root", "0")
    assert dict(steps)["STOPSIGNAL"] == "SIGTERM"
    assert not Path(dict(steps)["VOLUME"]).suffix, "a folder, and not the file"
    for rest in (rest for word, rest in steps if word == "RUN" and "pip install" in rest):
        assert "--no-cache-dir" in rest


def test_the_services_share_a_folder_and_a_user() -> None:
    services: Mapping[str, Any] = COMPOSE["services"]
    assert {service["user"] for service in services.values()} == {"1000:1000"}
    assert {tuple(service["volumes"]) for service in services.values()} == {("store:/data",)}
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert set(service.get("depends_on", ())) <= set(services)
    assert "PELTON_DASHBOARD_TOKEN" in services["dashboard"]["environment"]


def test_the_pod() -> None:
    found = stateful_set()
    assert found["spec"]["replicas"] == 1
    (claim,) = found["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    pod = found["spec"]["template"]["spec"]
    volumes = {claim["metadata"]["name"], *(volume["name"] for volume in pod["volumes"])}
    for container in pod["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert container["securityContext"]["readOnlyRootFilesystem"]
    listed = yaml.safe_load((FOLDER / "kustomize/kustomization.yaml").read_text())["resources"]
    there = {path.name for path in (FOLDER / "kustomize").iterdir()}
    assert {*listed, "kustomization.yaml"} == there


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_folder_is_built() -> None:
    done = subprocess.run(["kubectl", "kustomize", FOLDER / "kustomize"], capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stderr
    built = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    assert set(built) == {"Namespace", "Service", "StatefulSet"}
    labels = built["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert built["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert built["Service"]["spec"]["selector"] == labels
    for container in built["StatefulSet"]["spec"]["template"]["spec"]["containers"]:
        assert container["image"] == "registry.example.com/shop:1"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_units(tmp_path: Path) -> None:
    program = tmp_path / "pelton"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text().replace("/srv/shop/.venv/bin/pelton", str(program)))
    units = [tmp_path / path.name for path in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if "shop-" in line]
    assert not said


def test_the_backup_of_the_timer_keeps_fourteen(tmp_path: Path) -> None:
    for day in range(1, 19):
        (tmp_path / f"2026-01-{day:02}.pelton").write_text("")
    service = unit(FOLDER / "systemd/shop-backup.service")["Service"]
    script = shlex.split(service["ExecStart"])[-1].replace("%%", "%")
    done = subprocess.run(["/bin/sh", "-ec", script], cwd=tmp_path, env={"PELTON": "true", "PATH": "/usr/bin:/bin"})
    assert not done.returncode
    assert [path.stem for path in sorted(tmp_path.iterdir())] == [f"2026-01-{day:02}" for day in range(5, 19)]
    done = subprocess.run(["/bin/sh", "-ec", script], cwd=tmp_path, env={"PELTON": "false", "PATH": "/usr/bin:/bin"})
    assert done.returncode


def test_the_guide_leads_to_each() -> None:
    text = GUIDE.read_text()
    for path in ("Dockerfile", "compose.yaml", "systemd", "kustomize"):
        assert f"examples/deploy/{path}" in text
