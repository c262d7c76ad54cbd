"""A page as one HTML file: self-contained, no script, no network, with light and dark colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from pelton.drawing.svg import tag

HUES: Final = 6
SHADES: Final = 8
_STYLE: Final = Path(__file__).with_name("page.css")


def page(title: str, body: str) -> str:
    """Return a whole page; ``body`` is markup.

    Its charts may use the classes ``w0`` to ``w5`` (hues, for categories) and ``q0`` to ``q7`` (shades, for
    amounts).
    """
    hues = "".join(f".w{k}{{fill:var(--w{k})}}.l{k}{{stroke:var(--w{k})}}" for k in range(HUES))
    shades = "".join(f".q{k}{{fill:var(--q{k})}}" for k in range(SHADES))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE.read_text('utf-8')}{hues}{shades}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def head(heading: str, words: str) -> str:
    """Return the page's heading and introduction."""
    return tag("h1", escape(heading)) + tag("p", escape(words))


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """Return the most important figures, each with its label."""
    cells = (tag("div", tag("b", escape(value)), tag("span", escape(words)), class_="tile") for value, words in figures)
    return tag("div", *cells, class_="tiles")


def section(heading: str, words: str, content: str) -> str:
    """Return a section of the page, empty without content; ``content`` is markup."""
    return tag("section", tag("h2", escape(heading)), tag("p", escape(words)), content) if content else ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, its first column left, the others right."""
    top = tag("tr", *(tag("th", escape(heading)) for heading in headings))
    lines = (tag("tr", *(tag("td", escape(cell)) for cell in row)) for row in rows)
    return tag("table", top, *lines)
