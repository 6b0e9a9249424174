"""All that was found in this process, by Grappler's pass and when functions were traced."""

from __future__ import annotations

from typing import Any

from . import _library, _process

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


def remembered(core: _library.Core) -> tuple[list[dict[str, Any]], int]:
    """What was found, in that order, and how many older records were dropped.

    TensorFlow optimizes a graph twice, so a refusal comes twice; it is named once.
    """
    remember(core, [])
    memory = _process.state()
    with memory["lock"]:
        records, dropped = list(memory["records"]), memory["dropped"]
    seen, once = set(), []
    for record in records:
        names = (tuple(record["inputs"]), tuple(record["outputs"]))
        key = (record["graph"], record.get("where"), *names, record["reason"])
        if record["fused"] or key not in seen:
            once.append(record)
        seen.add(key)
    return once, dropped


def forget(core: _library.Core) -> None:
    """Drops all of them."""
    memory = _process.state()
    with memory["lock"]:
        core.take_records()
        memory["records"].clear()
        memory["dropped"] = 0
