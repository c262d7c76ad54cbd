"""Builds the sdist and the wheel, checks them, and tries the wheel in clean environments: ``make packages``.

Each Python from 3.11 on that is found on the path, free-threaded ones too, gets an environment with nothing but the
wheel and runs the readme's programs there, outside the repository. The lowest Python also gets the lowest versions of
every dependency that ``pyproject.toml`` allows. The types of the public names must be complete.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14", "3.14t")
"""The versions that Pelton is made for."""
FRAMEWORKS: Final = "apscheduler,arrow,cache,celery,django,fastapi,flask,fsspec,taskiq"
"""The extras of `pelton.contrib`, and those that its guide needs."""
# Its version, and whether it is free-threaded.
_VERSION: Final = """
import sys, sysconfig
print(*sys.version_info[:2], sysconfig.get_config_var("Py_GIL_DISABLED") or 0)
"""
_PAGE: Final = """
import asyncio, sys
from pathlib import Path
from tests.docs.pages import run_page
given = dict(argument.split("=", 1) for argument in sys.argv[2:])
if given.pop("spark", ""):
    import pelton.spark
    from pyspark.sql import SparkSession
    settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    given["spark"] = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
asyncio.run(run_page(Path(sys.argv[1]), **given))
"""
# For the slowest of them, the installation of Spark.
_TIMEOUT_S: Final = 900
_IN_WHEEL: Final = re.compile(r"(pelton|pyspark_pelton)/|pelton-[^/]+\.dist-info/")
# What programs that use Pelton are tested with; its own tests keep theirs in tests/.
_TEST_KIT: Final = frozenset(
    {"__init__", "clock", "drain", "fixtures", "history", "job_waits", "plugin", "queue_history", "queue_record"}
)


def build(target: Path) -> Path:
    """Build sdist and wheel into a folder, check their metadata, and return the wheel."""
    _run([sys.executable, "-m", "build", "--outdir", str(target), str(ROOT)])
    found = sorted(str(path) for path in target.iterdir())
    _run([sys.executable, "-m", "twine", "check", "--strict", *found])
    (wheel,) = target.glob("*.whl")
    return wheel


def strays(wheel: Path) -> list[str]:
    """Return the files of a wheel that do not belong there."""
    names = zipfile.ZipFile(wheel).namelist()
    kit = [name for name in names if name.startswith("pelton/testing/") and not _is_public_kit(Path(name).stem)]
    return [name for name in names if not _IN_WHEEL.match(name)] + kit


def _is_public_kit(module: str) -> bool:
    return module in _TEST_KIT or module.endswith("_checks")


def requirements(wheel: Path) -> list[str]:
    """Return what a wheel requires, extras too, as its metadata says."""
    file = zipfile.ZipFile(wheel)
    (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
    return HeaderParser().parsestr(file.read(name).decode()).get_all("Requires-Dist") or []


def lowest(required: Iterable[str], extras: str = "") -> list[str]:
    """Return constraints to the lowest allowed version of each requirement, those of other extras left out if given.

    >>> lowest(["msgspec>=0.22", "pelton[spark]; extra == 'pipelines'", "pyspark<5,>=4.3; extra == 'spark'"])
    ['msgspec==0.22.*', 'pyspark==4.3.*']
    """
    bounds = {}
    for text in required:
        name = re.split(r"[\[<>=!~; ]", text, maxsplit=1)[0]
        bound = re.search(r">=\s*([0-9.]+)", text.partition(";")[0])
        extra = re.search(r"extra == ['\"]([\w-]+)", text)
        if bound is not None and (not extras or extra is None or extra[1] in extras.split(",")):
            bounds[name] = f"{name}=={bound[1]}.*"
    return list(bounds.values())


def pythons() -> list[str]:
    """Return the interpreters on the path that Pelton is made for, the lowest version first.

    Others can be named in ``PELTON_PYTHONS``; each version is returned once.
    """
    named = os.environ.get("PELTON_PYTHONS", "").split()
    on_path = [path for path in map(shutil.which, (f"python{version}" for version in PYTHONS)) if path]
    found: dict[tuple[int, ...], str] = {}
    for path in (*named, *on_path):
        # A version manager has names on the path for versions that are not chosen, or not there.
        told = subprocess.run([path, "-c", _VERSION], capture_output=True, text=True, timeout=60)
        if not told.returncode:
            found.setdefault(tuple(map(int, told.stdout.split())), path)
    return [path for _, path in sorted(found.items())]


class CleanEnvironment:
    """An environment of one Python, outside the repository, in ``folder``."""

    def __init__(self, python: str, folder: Path) -> None:
        self.folder = folder
        _run([python, "-m", "venv", str(folder / "env")])
        self.python = str(folder / "env/bin/python")

    def install(self, *wanted: str, constraints: Sequence[str] = ()) -> None:
        """Install distributions; each constraint bounds a version."""
        file = self.folder / "constraints.txt"
        file.write_text("".join(f"{line}\n" for line in constraints))
        pip = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "-c", str(file), *wanted])

    def run(self, program: str, *arguments: str) -> None:
        """Run a program in an empty folder; warnings are errors, unless a dependency gives them."""
        with tempfile.TemporaryDirectory(dir=self.folder) as empty:
            _run([self.python, "-W", "error:::pelton", "-c", program, *arguments], cwd=empty, env=_bare(tests=True))

    def run_pages(self, *pages: Path, given: Mapping[str, str] | None = None) -> None:
        """Run the examples of pages, and compare what they print with what the page says.

        ``given`` are the texts that a page assumes; with ``spark`` it gets a session.
        """
        for page in pages:
            self.run(_PAGE, str(page), *(f"{name}={value}" for name, value in (given or {}).items()))


def _bare(*, tests: bool) -> dict[str, str]:
    """Return this process's environment without what leads into the repository, but for the pages' runner."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PYTHONPATH": str(ROOT)} if tests else kept


def _run(command: Sequence[str], **options: object) -> None:
    print("+", *(part if "\n" not in part else part.splitlines()[-1] for part in command), file=sys.stderr, flush=True)
    subprocess.run(command, check=True, timeout=_TIMEOUT_S, **{"env": _bare(tests=False), **options})  # type: ignore[call-overload]


def check_types() -> None:
    """Check that the types of all public names are known, as pyright sees them."""
    pyright = [sys.executable, "-m", "pyright", "--verifytypes", "pelton", "--ignoreexternal"]
    # This tree's package, whichever is installed; the types of what it requires are those of the Python on the path.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    _run(pyright, env={**_bare(tests=False), "PYTHONPATH": str(ROOT / "src"), "PATH": path})


def main() -> int:
    """Build and try; the exit status is that of the first thing that fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.packages", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where sdist and wheel are put (dist)")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    wheel = build(out)
    if found := strays(wheel):
        print("these files do not belong into the wheel:", *found, sep="\n  ", file=sys.stderr)
        return 1
    check_types()
    found_pythons = pythons()
    for number, python in enumerate(found_pythons):
        with tempfile.TemporaryDirectory() as folder:
            clean = CleanEnvironment(python, Path(folder))
            clean.install(str(wheel))
            clean.run_pages(ROOT / "README.md")
            if number == 0:
                clean.install(f"{wheel}[cli,cluster,metrics,otel,serve]", constraints=lowest(requirements(wheel)))
                clean.run("import pelton.cli.main, pelton.cluster, pelton.metrics, pelton.otel, pelton.server")
                clean.run_pages(ROOT / "README.md")
                clean.install(f"{wheel}[{FRAMEWORKS}]", "httpx2", constraints=lowest(requirements(wheel), FRAMEWORKS))
                docs = ROOT / "docs"
                clean.run_pages(docs / "reference/examples/frameworks.md", docs / "guides/jobs/celery-broker.md")
    print("tried with:", *found_pythons)
    return 0


if __name__ == "__main__":
    sys.exit(main())
