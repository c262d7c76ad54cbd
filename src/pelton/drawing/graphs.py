"""Graphs of what comes after what, as SVG: layers from left to right, a box for each node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pelton.drawing.charts import tag, text, title

_WIDTH: Final = 150.0
_HEIGHT: Final = 38.0
_GAP_X: Final = 46.0
_GAP_Y: Final = 12.0
_LONGEST: Final = 20
_FILL: Final = "var(--state-soft, none)"
_STROKE: Final = "var(--state, currentColor)"


class GraphNode(NamedTuple):
    """A node: its label, what is written below, its state, where it leads, and the numbers of those before it."""

    number: int
    label: str
    note: str
    state: str
    href: str
    after: Sequence[int]


def layers_of(nodes: Sequence[GraphNode]) -> dict[int, int]:
    """Return the layer of each node, one more than the highest of those before it; unknown ones do not count."""
    layers = {node.number: 0 for node in nodes}
    # As often as a chain can be long; a circle ends there, too.
    for _ in nodes:
        before = dict(layers)
        for node in nodes:
            known = [layers[number] + 1 for number in node.after if number in layers and number != node.number]
            layers[node.number] = min(max(known, default=0), len(nodes) - 1)
        if layers == before:
            break
    return layers


def flow_graph(nodes: Sequence[GraphNode], label: str) -> str:
    """Return the graph of some nodes as markup; labels and addresses are escaped."""
    places = _places(nodes)
    width = max((x for x, _ in places.values()), default=0.0) + _WIDTH + 2
    height = max((y for _, y in places.values()), default=0.0) + _HEIGHT + 2
    edges = [_edge(places[number], places[node.number]) for node in nodes for number in node.after if number in places]
    boxes = [_box(node, *places[node.number]) for node in nodes]
    return tag(
        "svg", title(label), *edges, *boxes, class_="graph", viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}", height=f"{height:g}", role="img", aria_label=label,
    )  # fmt: skip


def _places(nodes: Sequence[GraphNode]) -> Mapping[int, tuple[float, float]]:
    """Return where the boxes begin: in each layer, those stand together that come after the same ones."""
    layers, rows, used = layers_of(nodes), dict[int, float](), dict[int, int]()
    for node in sorted(nodes, key=lambda one: layers[one.number]):
        before = [rows[number] for number in node.after if number in rows]
        rows[node.number] = sum(before) / len(before) if before else float(len(rows))
    places: dict[int, tuple[float, float]] = {}
    for node in sorted(nodes, key=lambda one: (layers[one.number], rows[one.number], one.number)):
        layer = layers[node.number]
        row = used[layer] = used.get(layer, -1) + 1
        places[node.number] = (1 + layer * (_WIDTH + _GAP_X), 1 + row * (_HEIGHT + _GAP_Y))
    return places


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    x0, y0, x1, y1 = start[0] + _WIDTH, start[1] + _HEIGHT / 2, end[0], end[1] + _HEIGHT / 2
    middle = (x0 + x1) / 2
    d = f"M{x0:g} {y0:g}C{middle:g} {y0:g} {middle:g} {y1:g} {x1:g} {y1:g}"
    return tag("path", d=d, fill="none", stroke="currentColor", opacity="0.5")


def _box(node: GraphNode, x: float, y: float) -> str:
    short = node.label if len(node.label) <= _LONGEST else f"{node.label[: _LONGEST - 1]}\u2026"
    inner = (
        title(f"{node.number}: {node.label}, {node.state}"),
        tag("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=6, fill=_FILL, stroke=_STROKE),
        text(x + 8, y + 16, short, font_size=12, fill="currentColor"),
        text(x + 8, y + 31, node.note, font_size=11, fill=_STROKE),
    )
    return tag("g", tag("a", *inner, href=node.href), data_state=node.state)
