"""Writes graphs before and after a rewrite as runs that TensorBoard shows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

    from ._graphs import NamedGraph

# TensorBoard takes files whose names hold "tfevents". A second call replaces the first one's.
_FILE = "events.out.tfevents.0.nv_norms_rewriter"


def write(folder: Path, pairs: Iterable[tuple[NamedGraph, tf.compat.v1.GraphDef]]) -> list[str]:
    """Two runs for each graph, NAME/before and NAME/after under `folder`; returns their names.

    Raises:
      OSError: the folder cannot be written to.
    """
    runs = []
    for named, after in pairs:
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in named.name)
        for side, graph_def in (("before", named.graph_def), ("after", after)):
            runs.append(f"{name}/{side}")
            (folder / name / side).mkdir(parents=True, exist_ok=True)
            _write_events(folder / name / side / _FILE, graph_def)
    return runs


def _write_events(path: Path, graph_def: tf.compat.v1.GraphDef) -> None:
    """An event file: records of Event, the first of which says that it is one."""
    import tensorflow as tf

    event = tf.compat.v1.Event
    now = time.time()
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        graph = graph_def.SerializeToString()
        writer.write(event(wall_time=now, graph_def=graph).SerializeToString())
