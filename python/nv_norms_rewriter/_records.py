"""All that was found in this process, by Grappler's pass and when functions were traced."""

from __future__ import annotations

from typing import Any

from . import _library, _process

# Of a record of a norm of volumes: whether it is channels last in the graph, and first inside XLA.
TURNED = "turned"

_OF_GRAPH = "_nv_norms_forward"

# A process that traces for ever keeps the latest: some 30 MB.
_MOST = 10_000


def remember(core: _library.Core, records: list[dict[str, Any]]) -> None:
    """Keeps records, behind those that the core library has found until now."""
    memory = _process.state()
    with memory["lock"]:
        found, dropped = core.take_records()
        kept = memory["records"]
        kept += found + records
        memory["dropped"] += dropped + max(0, len(kept) - _MOST)
        del kept[:-_MOST]


def of_graph(graph: Any) -> dict[str, dict[str, Any]]:
    """Those of the fused forward ops that a trace has put into a graph, by the ops' names."""
    return getattr(graph, _OF_GRAPH, {})


def set_of_graph(graph: Any, records: dict[str, dict[str, Any]]) -> None:
    setattr(graph, _OF_GRAPH, records)


def remembered(core: _library.Core) -> tuple[list[dict[str, Any]], int]:
    """What was found, in that order, and how many older records were dropped.

    Grappler gives a graph to the pass twice, so a refusal comes twice; it is named once. What was
    found in a trace was found once, and functions of one name are told apart by nothing else.
    """
    remember(core, [])
    memory = _process.state()
    with memory["lock"]:
        records, dropped = list(memory["records"]), memory["dropped"]
    seen, once = set(), []
    for record in records:
        if not record["fused"] and record.get("where", "graph") == "graph":
            names = (tuple(record["inputs"]), tuple(record["outputs"]))
            key = (record["graph"], *names, record["reason"])
            if key in seen:
                continue
            seen.add(key)
        once.append(record)
    return once, dropped


def forget(core: _library.Core) -> None:
    """Drops all of them."""
    memory = _process.state()
    with memory["lock"]:
        core.take_records()
        memory["records"].clear()
        memory["dropped"] = 0
