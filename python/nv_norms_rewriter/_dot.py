"""Draws what a rewrite changed, before and after, in Graphviz's language."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

    from ._graphs import NamedGraph

_REMOVED = 'style=filled fillcolor="#fde0dd"'
_ADDED = 'style="filled,bold" fillcolor="#c7e9c0"'
_KEPT = 'style=filled fillcolor="#f7f7f7"'


def draw(pairs: Iterable[tuple[NamedGraph, tf.compat.v1.GraphDef]]) -> str:
    """A drawing of each graph and its rewritten form side by side.

    Only what changed is drawn, with its neighbours: removed nodes in red, new ones in green.
    """
    lines = [
        "digraph nv_norms_rewriter {",
        '  graph [fontname="Helvetica" rankdir=TB compound=true]',
        '  node [fontname="Helvetica" fontsize=10 shape=box]',
    ]
    for number, (named, after) in enumerate(pairs):
        before = named.graph_def
        removed = _changed(before, after)
        added = _changed(after, before)
        for side, graph, changed, style in (
            ("before", before, removed, _REMOVED),
            ("after", after, added, _ADDED),
        ):
            title = f"{named.name}: {side} ({len(graph.node)} nodes)"
            lines += _cluster(f"{number}_{side}", title, graph, changed, style)
    return "\n".join([*lines, "}", ""])


def _inputs(node: tf.compat.v1.NodeDef) -> list[str]:
    return [name.lstrip("^").partition(":")[0] for name in node.input]


def _changed(graph: tf.compat.v1.GraphDef, other: tf.compat.v1.GraphDef) -> set[str]:
    """Names of the nodes that the other graph lacks, or has with another op."""
    ops = {node.name: node.op for node in other.node}
    return {node.name for node in graph.node if ops.get(node.name) != node.op}


def _cluster(
    key: str, title: str, graph: tf.compat.v1.GraphDef, changed: set[str], style: str
) -> list[str]:
    edges = [(source, node.name) for node in graph.node for source in _inputs(node)]
    edges = [edge for edge in edges if edge[0] in changed or edge[1] in changed]
    shown = changed.union(*edges)
    lines = [f"  subgraph cluster_{key} {{", f"    label={_quoted(title)}"]
    for node in graph.node:
        if node.name in shown:
            label = f"{node.op}\n{_shortened(node.name)}"
            look = style if node.name in changed else _KEPT
            lines.append(f"    {_quoted(f'{key}/{node.name}')} [label={_quoted(label)} {look}]")
    for source, target in edges:
        lines.append(f"    {_quoted(f'{key}/{source}')} -> {_quoted(f'{key}/{target}')}")
    return [*lines, "  }"]


def _shortened(name: str, width: int = 48) -> str:
    return name if len(name) <= width else f"...{name[3 - width :]}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
