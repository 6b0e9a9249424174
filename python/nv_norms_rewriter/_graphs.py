"""Reads the graphs of a file: a SavedModel's signatures, a frozen .pb, a .pbtxt."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


class UnreadableError(ValueError):
    """The file holds no graph that can be read; the message says what was expected."""


@dataclasses.dataclass(frozen=True)
class NamedGraph:
    """A graph with the nodes that are fetched from it."""

    name: str
    graph_def: tf.compat.v1.GraphDef
    fetches: tuple[str, ...]


def is_saved_model(path: Path) -> bool:
    """Whether read() takes the path for a SavedModel, which has signatures."""
    return path.is_dir() or path.name == "saved_model.pb"


def read(path: Path, fetches: tuple[str, ...] = ()) -> list[NamedGraph]:
    """The graphs in `path`: one for each signature of a SavedModel, else one.

    Args:
      path: a SavedModel's folder or its saved_model.pb, a GraphDef as .pb or as text (.pbtxt).
      fetches: for a GraphDef, the names of the nodes that are fetched; without any, those that no
        other node reads.

    Raises:
      UnreadableError: there is no such file, or it holds something else.
    """
    if path.is_dir():
        if not (path / "saved_model.pb").is_file():
            raise UnreadableError(
                f"{path} is a folder without saved_model.pb: no SavedModel that can be read "
                "(saved_model.pbtxt is not)"
            )
        return _read_saved_model(path / "saved_model.pb")
    if not path.is_file():
        raise UnreadableError(f"{path} does not exist")
    if path.name == "saved_model.pb":
        return _read_saved_model(path)
    return [_with_fetches(path.name, _read_graph_def(path), fetches)]


def functions(
    graph: NamedGraph, rewritten: tf.compat.v1.GraphDef
) -> Iterator[tuple[NamedGraph, tf.compat.v1.GraphDef]]:
    """The functions of a graph's library that another, rewritten form of it has otherwise, each as
    a graph of its own."""
    import tensorflow as tf

    after = {function.signature.name: function for function in rewritten.library.function}
    for function in graph.graph_def.library.function:
        name = function.signature.name
        if name in after and after[name] != function:
            before = tf.compat.v1.GraphDef(node=function.node_def)
            fetches = tuple(result.partition(":")[0] for result in function.ret.values())
            new = tf.compat.v1.GraphDef(node=after[name].node_def)
            yield NamedGraph(f"function {name}", before, fetches), new


def _read_graph_def(path: Path) -> tf.compat.v1.GraphDef:
    import tensorflow as tf
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    graph_def = tf.compat.v1.GraphDef()
    try:
        if path.suffix in (".pbtxt", ".pbtext", ".txt"):
            text_format.Parse(path.read_text(), graph_def)
        else:
            graph_def.ParseFromString(path.read_bytes())
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise UnreadableError(
            f"{path} is not a GraphDef ({error}). Expected: a SavedModel (model.export(folder) in "
            "Keras, tf.saved_model.save), a binary GraphDef (.pb) or a GraphDef as text (.pbtxt)"
        ) from error
    if not graph_def.node:
        raise UnreadableError(f"{path} holds a graph without nodes")
    return graph_def


def _with_fetches(
    name: str, graph_def: tf.compat.v1.GraphDef, fetches: tuple[str, ...]
) -> NamedGraph:
    if not fetches:
        read_nodes = {i.lstrip("^").partition(":")[0] for n in graph_def.node for i in n.input}
        fetches = tuple(n.name for n in graph_def.node if n.name not in read_nodes)
    return NamedGraph(name, graph_def, fetches)


def _read_saved_model(path: Path) -> list[NamedGraph]:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    try:
        saved_model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    except DecodeError as error:
        raise UnreadableError(f"{path} is not a SavedModel ({error})") from error
    metas = [m for m in saved_model.meta_graphs if "serve" in m.meta_info_def.tags]
    graphs = []
    for meta in metas or saved_model.meta_graphs:
        for key, signature in sorted(meta.signature_def.items()):
            fetches = tuple(
                dict.fromkeys(info.name.partition(":")[0] for info in signature.outputs.values())
            )
            present = {node.name for node in meta.graph_def.node}
            if key != "__saved_model_init_op" and fetches and present.issuperset(fetches):
                inlined = _inlined(meta.graph_def, fetches)
                graphs.append(NamedGraph(f"signature {key}", inlined, fetches))
    if not graphs:
        raise UnreadableError(f"{path} has no signature with outputs")
    return graphs


def _inlined(graph_def: tf.compat.v1.GraphDef, fetches: tuple[str, ...]) -> tf.compat.v1.GraphDef:
    """The part of a graph that the fetches need, with its function calls inlined.

    TensorFlow does this first when it runs a graph; a signature consists of one call until then.
    """
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
    from tensorflow.python.grappler import tf_optimizer

    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(graph_def)
    meta.collection_def["train_op"].node_list.value.extend(fetches)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers.append("function")
    options.function_optimization = RewriterConfig.AGGRESSIVE
    options.use_plugin_optimizers = RewriterConfig.OFF
    options.meta_optimizer_iterations = RewriterConfig.ONE
    options.min_graph_nodes = -1
    inlined = tf_optimizer.OptimizeGraph(config, meta)
    return _needed(inlined, fetches)


def _needed(graph_def: tf.compat.v1.GraphDef, fetches: tuple[str, ...]) -> tf.compat.v1.GraphDef:
    """The nodes that the fetches depend on."""
    import tensorflow as tf

    nodes = {node.name: node for node in graph_def.node}
    needed: set[str] = set()
    waiting = list(fetches)
    while waiting:
        name = waiting.pop()
        if name in nodes and name not in needed:
            needed.add(name)
            waiting += (i.lstrip("^").partition(":")[0] for i in nodes[name].input)
    return tf.compat.v1.GraphDef(
        node=[node for node in graph_def.node if node.name in needed],
        library=graph_def.library,
        versions=graph_def.versions,
    )
