"""Writes the reference: a page for each group of public names, the commands, and the tables of configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools.site.commands import command_pages
from tools.site.examples import FOLDER
from tools.site.fields import fields_table, has_fields
from tools.site.public import CALLED_BY_FRAMEWORKS, PAGES, PublicName, names_by_page

_UNITS: Final = """Every public name, from its own docstring. Times are in seconds or `timedelta`, unless a name ends in
`_ns` (nanoseconds). Sizes are in bytes. Leave out `await` with [`pelton.sync`](sync.md).
"""
_SYNC: Final = """# Without await

`pelton.sync` has the same names as `pelton`, and each call blocks until it is done. What is awaited elsewhere is called
here, `async with` is `with`, and `async for` is `for`. Any number of threads may share what `pelton.sync.open` returns.

```python
import pelton

with pelton.sync.open("memory:") as jet:
    jet.create_stream("orders", subjects=["orders.>"])
    print(jet.publish("orders.eu.1", b"two shovels").seq)  # 1
```

`JobContext` is what a job on a thread is given, in either world. See [the
guide](../guides/streams/streams.md#without-await).
"""


def write_reference(pages: Path) -> None:
    """Write all pages of the reference."""
    folder = pages / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    for page, names in names_by_page().items():
        described = PAGES[page]
        parts = [f"# {described.title}\n", f"{described.about}\n", *map(_entry, names)]
        (folder / f"{page}.md").write_text("\n".join(parts))
    for page, text in command_pages().items():
        (folder / f"{page}.md").write_text(text)
    (folder / "sync.md").write_text(_SYNC)
    (folder / "index.md").write_text(_index())


def _entry(name: PublicName) -> str:
    options = ["      heading_level: 2"]
    if name.path.rpartition(".")[2] in CALLED_BY_FRAMEWORKS:
        options.append("      members: false")
    if has_fields(name.value):
        assert isinstance(name.value, type)
        fields = [field for field in name.value.__annotations__ if not field.startswith("_")]
        # The table below says more of the fields than their names and types.
        hidden = ", ".join(f'"!^{field}$"' for field in ["_.*", *fields])
        options.append(f"      filters: [{hidden}]")
        subject = getattr(name.value, "_subject", "")
        told = f"Published under `{subject}`.\n\n" if isinstance(subject, str) and subject else ""
        return f"::: {name.path}\n    options:\n" + "\n".join(options) + f"\n\n{told}{fields_table(name.value)}"
    return f"::: {name.path}\n    options:\n" + "\n".join(options) + "\n"


def _index() -> str:
    """Return the page that leads to each name, and says what the examples assume."""
    parts = [
        "# Reference\n",
        _UNITS,
        (FOLDER / "README.md").read_text().partition("<!-- given -->\n")[2].partition("<!-- end -->")[0],
        "| page | names |",
        "|---|---|",
    ]
    for page, names in names_by_page().items():
        links = ", ".join(f"[`{name.path.rpartition('.')[2]}`][{name.path}]" for name in names)
        parts.append(f"| [{PAGES[page].title}]({page}.md) | {links} |")
    return "\n".join(parts) + "\n"
