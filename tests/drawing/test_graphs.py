"""A graph is well-formed, in layers, and inert to whatever its nodes are called."""

from __future__ import annotations

from xml.etree import ElementTree

from pelton.drawing.charts import GraphNode, flow_graph, layers_of

HOSTILE = "<script>alert(1)</script>\"'&"


def _node(number: int, *after: int, label: str = "job") -> GraphNode:
    return GraphNode(number, label, "completed", "completed", f"#node-{number}", after)


def test_layers_follow_the_longest_way() -> None:
    nodes = [_node(0), _node(1, 0), _node(2, 0, 1), _node(3), _node(4, 3, 2, 99)]
    assert layers_of(nodes) == {0: 0, 1: 1, 2: 2, 3: 0, 4: 3}
    # Also of one that comes before what it comes after, and of a circle, which no flow has.
    assert layers_of([_node(0, 1), _node(1)]) == {0: 1, 1: 0}
    assert set(layers_of([_node(0, 1), _node(1, 0), _node(2, 2)])) == {0, 1, 2}


def test_a_graph_has_a_box_a_node_and_a_line_an_edge() -> None:
    drawn = flow_graph([_node(0), _node(1, 0), _node(2, 0, 7)], "Flow")
    root = ElementTree.fromstring(drawn)
    assert len(list(root.iter("rect"))) == 3
    assert len(list(root.iter("path"))) == 2
    boxes = [(float(one.attrib["x"]), float(one.attrib["y"])) for one in root.iter("rect")]
    assert len({*boxes}) == 3
    assert boxes[1][0] == boxes[2][0] > boxes[0][0]


def test_names_are_inert() -> None:
    drawn = flow_graph([_node(0, label=HOSTILE)._replace(href=f"/x?{HOSTILE}", state=HOSTILE)], HOSTILE)
    root = ElementTree.fromstring(drawn)
    assert [one.tag for one in root.iter() if one.tag == "script"] == []
    assert "<script" not in drawn
    assert ElementTree.fromstring(flow_graph([], "None")).tag == "svg"
