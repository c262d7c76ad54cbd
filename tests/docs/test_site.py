"""The documentation site: its navigation, its reference and ``llms.txt`` are complete, and it builds strictly."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest

import pelton
from pelton.cli.main import COMMANDS
from tests.docs.pages import ROOT
from tools.site.__main__ import write_pages
from tools.site.commands import COMMAND_PAGES
from tools.site.examples import examples
from tools.site.fields import field_texts, has_fields
from tools.site.public import (
    CALLED_BY_FRAMEWORKS,
    INTERNAL,
    PACKAGES,
    PAGES,
    PublicName,
    names_by_page,
    page_of,
    public_names,
)
from tools.site.site_map import nav
from tools.site.versions import add_version

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
_SEARCHED = (
    "delay", "ETA", "cancel", "revoke", "cron", "outbox", "dead letter", "consumer group", "exactly once", "lease",
    "visibility timeout", "fencing token", "idempotency key", "rate limit", "priority", "workflow", "leader election",
    "semaphore", "prefetch", "deduplication",
)  # fmt: skip
# What the site's own search has to find, and the page that explains it.
_FOUND = {
    "delay": "guides/jobs/queue/",
    "ETA": "guides/jobs/queue/",
    "cancel": "guides/jobs/control/",
    "revoke": "guides/jobs/control/",
    "cron": "guides/jobs/schedules/",
    "outbox": "guides/transactions/",
    "dead letter": "guides/jobs/retries/",
    "consumer group": "guides/streams/pull/",
    "exactly once": "explanation/delivery/",
    "celery broker": "guides/jobs/celery-broker/",
    "visibility timeout": "coming-from/synonyms/",
}
# They are listed on a page of their own.
_LISTED = ("decisions/0", "project/measurements/")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    write_pages(folder)
    return folder


# --- pages ----------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation_once(pages: Path) -> None:
    written = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    listed = [page.path for page in nav()]
    assert sorted(set(listed)) == sorted(listed)
    assert set(listed) <= written
    assert {path for path in written - set(listed) if not path.startswith(_LISTED)} == set()


def test_the_folder_of_a_page_is_its_section() -> None:
    for page in nav():
        assert page.path.rpartition("/")[0] == "/".join(page.sections).lower().replace(" ", "-")


def test_links_of_the_site_lead_to_its_pages(pages: Path) -> None:
    for path in pages.rglob("*.md"):
        for target in _LINK.findall(re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)):
            assert (path.parent / target).exists(), f"{path.relative_to(pages)} links to {target}"


def test_llms_txt_has_a_line_for_each_page(pages: Path) -> None:
    text = (pages / "llms.txt").read_text()
    lines = re.findall(r"^- \[(.+?)\]\((.+?)\): (.+)$", text, re.MULTILINE)
    assert text.startswith("# Pelton\n\n> Durable streams")
    assert len(lines) == len(nav()) == len({address for _, address, _ in lines})
    assert all(len(gist) > 10 for _, _, gist in lines)
    assert ("Job queues", "guides/jobs/queue/") in [line[:2] for line in lines]


@pytest.mark.parametrize("word", _SEARCHED)
def test_words_that_people_search_for_are_translated(word: str) -> None:
    page = (ROOT / "docs" / "coming-from" / "synonyms.md").read_text().lower()
    glossary = (ROOT / "docs" / "reference" / "glossary.md").read_text().lower()
    assert word.lower() in page or word.lower() in glossary


# --- the reference --------------------------------------------------------------------------------


def test_every_public_name_has_one_place_in_the_reference(pages: Path) -> None:
    text = {page: (pages / "reference" / f"{page}.md").read_text() for page in PAGES}
    names = [name.path for name in public_names()]
    assert len(names) == len(set(names))
    shown = [found for each in text.values() for found in re.findall(r"^::: (\S+)$", each, re.MULTILINE)]
    assert sorted(shown) == sorted(names)
    index = (pages / "reference" / "index.md").read_text()
    assert [name for name in names if f"][{name}]" not in index] == []
    wanted = {getattr(pelton, name) for name in pelton.__all__ if inspect.isclass(getattr(pelton, name))}
    assert wanted <= {name.value for name in public_names() if inspect.isclass(name.value)}


def test_public_packages_are_in_the_reference() -> None:
    for package in PACKAGES:
        assert any(name.path.startswith(f"pelton.{package}.") for name in public_names()), package


def test_every_command_is_in_the_reference(pages: Path) -> None:
    text = "".join((pages / "reference" / f"{page}.md").read_text() for page in COMMAND_PAGES)
    assert sorted(re.findall(r"^## pelton (\S+)$", text, re.MULTILINE)) == sorted(COMMANDS)
    assert "### pelton queue pause" in text
    assert "`--concurrency" in text


@pytest.mark.parametrize(
    "name",
    [name.value for name in names_by_page()["configuration"] if isinstance(name.value, type)],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_a_configuration_is_explained(name: type) -> None:
    texts = field_texts(name)
    fields = [field for field in name.__annotations__ if not field.startswith("_")]
    assert [field for field in fields if not texts.get(field)] == []
    for field, kind in name.__annotations__.items():
        if "Duration" in str(kind):
            assert re.search(r"second|\d s\b", texts[field]), f"{field} does not tell its unit"


@pytest.mark.parametrize("page", ["observe", "observe-queues", "serve"])
def test_every_field_has_a_sentence_of_its_own(page: str) -> None:
    kinds = [name.value for name in names_by_page()[page] if has_fields(name.value)]
    assert len(kinds) > 3
    for kind in kinds:
        assert isinstance(kind, type)
        texts = field_texts(kind)
        assert [field for field in kind.__annotations__ if not texts.get(field)] == [], kind.__name__
        for field, hint in kind.__annotations__.items():
            if str(hint) == "float":
                assert re.search(r"second|minute", texts[field]), f"{kind.__name__}.{field} does not tell its unit"


@pytest.mark.parametrize(
    "page",
    [
        "infos", "jobs", "job-types", "running", "job-states", "flows", "buckets", "objects", "locks", "stores",
        "streams", "values", "observe-jobs", "event-classes",
    ],
)  # fmt: skip
def test_every_field_of_a_structure_is_explained(page: str) -> None:
    for name in names_by_page()[page]:
        if has_fields(name.value) and isinstance(name.value, type):
            bases = [base.__doc__ for base in name.value.__mro__ if base.__module__.startswith("pelton.")]
            told = f"{bases} {' '.join(field_texts(name.value))}"
            fields = [field for field in get_type_hints(name.value) if not field.startswith("_")]
            assert [field for field in fields if not re.search(rf"\b{field}\b", told)] == [], name.path


# --- docstrings -----------------------------------------------------------------------------------


class Operation(NamedTuple):
    """A function or method that programs call, with the docstrings that tell of it."""

    path: str
    owner: type | None
    function: Callable[..., Any]
    text: str


# What programs hold in their hands: each of its operations has an example.
_WITH_EXAMPLES = (
    "stores", "upkeep", "streams", "values", "queues", "jobs", "job-types", "running", "claims", "job-states",
    "flows", "transactions", "buckets", "objects", "locks", "observe", "observe-queues", "observe-jobs", "metrics",
    "frameworks", "serve", "testing", "spark", "arrow",
)  # fmt: skip
# Parameters that need no words, if the sentence is about nothing else.
_PLAIN = {
    "address", "args", "calls", "consumer", "data", "delta", "headers", "job_id", "kwargs", "level", "name", "path",
    "queue", "seq", "statement", "stream", "subject", "text", "bindings", "acks", "flow_id", "source", "random", "rnd",
    "runtime", "jet", "type", "value", "kind", "key", "config", "options", "spark",
}  # fmt: skip


def _own(kind: type) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    for base in kind.__mro__:
        if base.__module__.startswith("pelton."):
            for name, member in vars(base).items():
                function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                if inspect.isfunction(function) and not name.startswith("_"):
                    yield base, name, function


def operations(name: PublicName) -> Iterator[Operation]:
    if inspect.isfunction(name.value) and name.value.__module__.startswith("pelton."):
        yield Operation(name.path, None, name.value, name.value.__doc__ or "")
    if isinstance(name.value, type) and not issubclass(name.value, BaseException):
        for base, method, function in _own(name.value):
            if f"{base.__qualname__}.{method}" not in INTERNAL and base.__name__ not in CALLED_BY_FRAMEWORKS:
                yield Operation(f"{name.path}.{method}", base, function, f"{function.__doc__} {base.__doc__}")


ALL = [each for name in public_names() for each in operations(name)]
HELD = [each for name in public_names() if page_of(name) in _WITH_EXAMPLES for each in operations(name)]


def test_frameworks_and_servers_have_an_example_of_each_class() -> None:
    shown = examples()
    parts = [name for page in ("frameworks", "serve") for name in names_by_page()[page]]
    # What a call returns is shown with the call.
    assert [name.path for name in parts if name.path.removeprefix("pelton.") not in shown] == []


def test_what_constructs_a_part_is_named() -> None:
    for name in (name for page in ("frameworks", "serve") for name in names_by_page()[page]):
        if isinstance(name.value, type) and "__init__" in vars(name.value):
            told = f"{name.value.__doc__}".replace("_", " ")
            parameters = [*inspect.signature(name.value.__init__).parameters][1:]  # type: ignore[misc]
            missing = [each for each in parameters if each not in _PLAIN and each.replace("_", " ") not in told]
            assert [each for each in missing if each not in ("kwargs", "options", "client")] == [], name.path


def test_times_tell_their_unit() -> None:
    for each in ALL:
        for parameter in inspect.signature(each.function).parameters.values():
            if "Seconds" in str(parameter.annotation) or "timedelta" in str(parameter.annotation):
                assert re.search(r"\d s\b|second|timedelta", each.text), f"{each.path}: {parameter.name}"


def test_errors_that_are_raised_are_named() -> None:
    for each in HELD:
        tree = ast.parse(textwrap.dedent(inspect.getsource(each.function)))
        raised = {
            node.exc.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
        }
        public = {name for name in raised if name in pelton.__all__ and name[0].isupper()}
        assert [name for name in public if name not in each.text] == [], each.path


def test_parameters_are_named() -> None:
    for each in HELD:
        names = [name for name in inspect.signature(each.function).parameters if name != "self" and name[0] != "_"]
        told = each.text.replace("_", " ")
        missing = [name for name in names if name not in _PLAIN and name.replace("_", " ") not in told]
        assert missing == [], each.path


_KINDS = [name.value for name in public_names() if isinstance(name.value, type)]


def _is_shown(each: Operation, shown: dict[str, str]) -> bool:
    # What a base defines may be shown with a class that has it from there.
    method = each.function.__name__
    kinds = [kind for kind in _KINDS if each.owner in kind.__mro__]
    return any(f"{kind.__name__}.{method}" in shown for kind in kinds) or each.path.removeprefix("pelton.") in shown


_UNSHOWN = {
    "dec_hook",
    "enc_hook",
    "encode_filter",
    "encode_key",
    "decode_key",
    "encode_value",
    "decode_value",
    "boot_id",
}


def test_every_operation_has_an_example() -> None:
    shown = examples()
    missing = [each.path for each in HELD if not _is_shown(each, shown) and each.function.__name__ not in _UNSHOWN]
    assert missing == []


def test_every_function_has_an_example() -> None:
    functions = [name.path.removeprefix("pelton.") for name in public_names() if inspect.isfunction(name.value)]
    assert len(functions) > 50
    assert sorted(set(functions) - set(examples())) == []


def test_examples_are_of_public_names() -> None:
    for name in examples():
        package = max((each for each in PACKAGES if name.startswith(f"{each}.")), key=len, default="")
        value: object = import_module(f"pelton.{package}" if package else "pelton")
        for part in name.removeprefix(f"{package}.").split("."):
            value = getattr(value, part)


# --- the build ------------------------------------------------------------------------------------


def test_versions_are_listed_with_the_newest_first(tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    for version in ("0.9", "0.10", "0.9"):
        built = tmp_path / "built"
        built.mkdir()
        (built / "index.html").write_text(version)
        (built / "404.html").write_text('<a href="/tutorial/"><script src="//elsewhere/a.js">')
        add_version(built, sites, version)
        assert (
            sites / version / "404.html"
        ).read_text() == f'<a href="/{version}/tutorial/"><script src="//elsewhere/a.js">'
    listed = json.loads((sites / "versions.json").read_text())
    assert [(each["version"], each["aliases"]) for each in listed] == [("0.10", ["latest"]), ("0.9", [])]
    assert "url=0.10/" in (sites / "index.html").read_text()


def test_the_site_builds_strictly() -> None:
    done = subprocess.run([sys.executable, "-m", "tools.site"], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    version = ".".join(pelton.__version__.split(".")[:2])
    site = ROOT / "build" / "site" / version
    page = (site / "reference" / "queues" / "index.html").read_text()
    assert 'id="pelton.Queue.enqueue"' in page
    assert (site / "llms.txt").is_file()
    # A reader finds what there is by scrolling: at these sizes a page is at most 20,000 pixels tall.
    articles = {path.parent.name: _article(path) for path in (site / "reference").glob("*/index.html")}
    assert {name for name, text in articles.items() if len(re.sub(r"<[^>]+>", " ", text).split()) > 5300} == set()
    assert {name for name, text in articles.items() if text.count("<h2 ") > 100} == set()
    (bundle,) = (site / "assets" / "javascripts").glob("bundle.*.min.js")
    is_whole = (bundle.parent / "mermaid.min.js").is_file() and "unpkg.com/mermaid" not in bundle.read_text()
    assert is_whole or "Diagrams need a network" in done.stdout
    index = json.loads((site / "search.json").read_text())
    found = {word: _found(index, word) for word in _FOUND}
    assert {word: page for word, page in _FOUND.items() if page not in found[word]} == {}


def _article(path: Path) -> str:
    (found,) = re.findall(r"<article.*?</article>", path.read_text(), re.DOTALL)
    return found


def _found(index: Any, words: str) -> set[str]:
    """Return the pages that have all words of a search, also as beginnings of longer ones."""
    separator = re.compile(index["config"]["separator"])
    pages = set()
    for item in index["items"]:
        text = re.sub(r"<[^>]+>", " ", f"{item['title']} {item['text']}").lower()
        terms = [term for term in separator.split(text) if term]
        if all(any(term.startswith(word) for term in terms) for word in words.lower().split()):
            pages.add(item["location"].partition("#")[0])
    return pages
