"""When modules are loaded: ``import pelton`` loads nothing that is not used."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pelton
from tools import names_stub

HEAVY = ("asyncio", "apsw", "msgspec", "ssl", "logging", "inspect", "typing", "nats", "pyspark", "rich", "argparse")


def loaded_by(program: str) -> set[str]:
    """Return the modules that a new interpreter has after a program, without those it starts with."""
    code = f"import sys; before = set(sys.modules)\n{program}\nprint(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "pelton"}


def test_a_bare_import_loads_nothing_else() -> None:
    modules = loaded_by("import pelton; pelton.__version__")
    assert ours(modules) == {"pelton", "pelton._version"}
    assert not modules.intersection(HEAVY)


def test_no_module_takes_the_place_of_a_public_name() -> None:
    root = Path(pelton.__file__).parent
    homes = [(root.parent / room.replace(".", "/"), names) for room, names in pelton._HOMES.items()]
    assert [name for home, names in homes for name in names if (home / f"{name}.py").exists()] == []
    loaded_by("import pelton.engine.salvage; assert callable(pelton.salvage) and callable(pelton.backup)")


def test_a_word_of_the_vocabulary_loads_no_backend() -> None:
    modules = loaded_by("from pelton import StreamConfig, ConfigError, __version__")
    assert {name.split(".")[1] for name in ours(modules) if "." in name} == {"_version", "api", "subjects"}
    assert not modules & {"asyncio", "apsw", "nats"}


@pytest.mark.parametrize(
    ("use", "needed"),
    [
        ("await jet.create_stream('orders'); await jet.publish('orders', b'a spade')", {"engine", "jet"}),
        ("await (await jet.queue('mail')).enqueue('send')", {"engine", "jet", "queue"}),
    ],
)
def test_what_uses_streams_or_a_queue_loads_no_other_room(tmp_path: Path, use: str, needed: set[str]) -> None:
    program = (
        "import asyncio, pelton\n"
        "async def main():\n"
        f"    async with pelton.open({str(tmp_path / 's.pelton')!r}) as jet:\n"
        f"        {use}\n"
        "asyncio.run(main())"
    )
    modules = loaded_by(program)
    assert not modules & {"multiprocessing.connection", "multiprocessing.process"}
    rooms = {name.split(".")[1] for name in ours(modules) if "." in name}
    assert needed <= rooms
    others = {"queue", "buckets", "locks", "observe", "cluster", "server", "sync", "moving"} - needed
    assert not rooms & others


def test_every_public_name_is_found_by_a_dot_and_by_from() -> None:
    names = pelton.__all__
    assert len(names) == len(set(names))
    assert set(names) <= set(dir(pelton))
    for name in names:
        assert getattr(pelton, name) is getattr(__import__("pelton", fromlist=[name]), name)
    program = "from pelton import *; from pelton import api; assert open.__module__ == 'pelton.connect.opening'"
    assert "pelton.connect" in loaded_by(program + "; assert issubclass(ConfigError, PeltonError) and sync.open")


def test_rooms_are_reached_by_a_dot() -> None:
    assert "pelton.sync.derive" in loaded_by("import pelton; pelton.api.headers.decode; pelton.sync.open")


def test_what_is_no_name_is_told() -> None:
    with pytest.raises(AttributeError, match="module 'pelton' has no attribute 'opne'"):
        pelton.opne  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'opne'"):
        from pelton import opne  # noqa: F401
    assert not hasattr(pelton, "__wrapped__")


def test_what_was_pickled_elsewhere_is_read_where_nothing_is_loaded() -> None:
    acked = pickle.dumps(pelton.PubAck("orders", 1))
    program = f"import pickle, pelton; assert pickle.loads({acked!r}) == pelton.PubAck('orders', 1)"
    assert "pelton.api.info" in loaded_by(program)


def test_the_stub_is_what_would_be_written_now() -> None:
    assert names_stub.TARGET.read_text() == names_stub.stub(), "run: python -m tools.names_stub"


def test_type_checkers_see_every_name(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from typing import assert_type\n"
        "import pelton\n"
        "from pelton import ConfigError, Jet, Stream\n"
        "async def use() -> None:\n"
        "    async with pelton.open('memory:') as jet:\n"
        "        assert_type(jet, Jet)\n"
        "        assert_type(await jet.create_stream('orders'), Stream)\n"
        "        assert_type(await jet.publish('orders'), pelton.PubAck)\n"
        "pelton.api.headers.decode(b'')\n"
        "assert_type(pelton.__version__, str)\n"
    )
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", program], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


SQL = re.compile(r"\b(SELECT\b.+\bFROM|INSERT INTO|DELETE FROM|UPDATE \S+ SET)\b", re.DOTALL)
BELOW_THE_PORT = {"storage", "streams", "consumers", "sourcing", "engine"}


def test_only_what_is_below_the_port_reads_tables() -> None:
    source = Path(pelton.__file__).parent
    found = []
    for path in source.rglob("*.py"):
        tree = ast.parse(path.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in told]
        if path.relative_to(source).parts[0] not in BELOW_THE_PORT:
            found += [(path, text) for text in texts if isinstance(text, str) and SQL.search(text)]
    assert not found


def test_no_statement_is_prepared_anew_for_its_limit() -> None:
    """Of the texts between the quotes, also of f-strings; see ``storage/database.py``."""
    bare = re.compile(r"\bLIMIT \?(?![+])")
    found = []
    for path in Path(pelton.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in told]
        found += [(path, text) for text in texts if isinstance(text, str) and bare.search(text)]
    assert not found


PLANNED = [
    # How a queue is stored: with keys as records, and whether it is read without its leader.
    ("setup.py", "has_exclusive_subjects"),
    # Whether deliveries are listed, or are told by the records of workers.
    ("scan.py", "own_verbs"),
    # Whether a flow and its first jobs are stored at once or in an order that can be repeated.
    ("flows.py", "atomic_batches"),
    # Whether settlements share a transaction, and so wait for each other.
    ("run/worker.py", "atomic_batches"),
    # Whether only the clock tells that a lease is lost.
    ("run/leased_jobs.py", "refuses_late_acks"),
    # Whether records of a job are stored together, and called jobs with the records that they are called.
    ("run/steps.py", "atomic_batches"),
]


def test_a_queue_asks_what_its_backend_can_do_in_no_other_place() -> None:
    room = Path(pelton.__file__).parent / "queue"
    asked = list[tuple[str, str]]()
    for file in sorted(room.rglob("*.py")):
        text = file.read_text()
        asked += [(str(file.relative_to(room)), flag) for flag in re.findall(r"\.planning\.(\w+)", text)]
        # What is not in Planning is a verb that every backend answers.
        assert not re.search(r"(isinstance|hasattr|getattr)\((self\.|queue\.|jet\.)?_?backend\b", text), file
        assert "runtime_checkable" not in text, file
    assert sorted(asked) == sorted(PLANNED)
