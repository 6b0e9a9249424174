"""``python -m nv_norms_rewriter inspect PATH``: what is fused in a saved graph, and what not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import _dot, _graphs, _tensorboard
from ._report import width
from ._rewrite import rewrite
from ._version import __version__


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nv_norms_rewriter")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    inspect = commands.add_parser(
        "inspect",
        help="show the normalizations of a saved graph",
        description="Shows the normalizations in a saved graph: which are fused, which are not and "
        "why, and how many nodes the graph has before and after. Nothing is executed or changed.",
    )
    inspect.add_argument(
        "path", type=Path, help="a SavedModel's folder, a GraphDef as .pb, or as .pbtxt"
    )
    inspect.add_argument("--signature", help="of a SavedModel: only this signature")
    inspect.add_argument(
        "--fetch",
        action="append",
        default=[],
        metavar="NODE",
        help="of a GraphDef: a node that is fetched (may be given again); default: the nodes that "
        "nothing else reads",
    )
    inspect.add_argument(
        "--device", help="CPU or GPU: where nodes run for which the graph does not say"
    )
    inspect.add_argument(
        "--dot", type=Path, metavar="FILE", help="draw what changes, for Graphviz (dot -Tsvg FILE)"
    )
    inspect.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write the graph before and after for TensorBoard (tensorboard --logdir DIR)",
    )
    return parser


def _inspect(arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.markup import escape

    graphs = _graphs.read(arguments.path, tuple(arguments.fetch))
    is_saved_model = _graphs.is_saved_model(arguments.path)
    if arguments.fetch and is_saved_model:
        raise ValueError(
            f"--fetch names nodes of a GraphDef, and {arguments.path} is a SavedModel, where the "
            "outputs of its signatures are fetched: choose one with --signature"
        )
    if arguments.signature is not None and not is_saved_model:
        raise ValueError(
            f"--signature names a signature of a SavedModel, and {arguments.path} is a GraphDef, "
            "which has none: choose what is fetched with --fetch"
        )
    if arguments.signature is not None:
        names = [graph.name.removeprefix("signature ") for graph in graphs]
        if arguments.signature not in names:
            raise ValueError(
                f"{arguments.path} has no signature {arguments.signature!r}; it has: "
                f"{', '.join(names)}"
            )
        graphs = [graphs[names.index(arguments.signature)]]

    console = Console(highlight=False, width=width())
    pairs = []
    for graph in graphs:
        rewritten, report = rewrite(graph.graph_def, arguments.device, graph.fetches)
        bodies = list(_graphs.functions(graph, rewritten))
        sizes = [f"{len(graph.graph_def.node)} nodes before, {len(rewritten.node)} after"]
        sizes += [
            f"{len(body.graph_def.node)} before, {len(after.node)} after in {body.name}"
            for body, after in bodies
        ]
        console.print(f"[bold]{escape(graph.name)}[/]: {escape('; '.join(sizes))}")
        console.print(report)
        console.print()
        pairs += [(graph, rewritten), *bodies]
    if arguments.dot is not None:
        arguments.dot.write_text(_dot.draw(pairs))
        console.print(
            f"The graph before and after is drawn in {escape(str(arguments.dot))}", soft_wrap=True
        )
    if arguments.tensorboard is not None:
        runs = _tensorboard.write(arguments.tensorboard, pairs)
        console.print(
            f"tensorboard --logdir {escape(str(arguments.tensorboard))} shows the graphs "
            f"{escape(', '.join(runs))}",
            soft_wrap=True,
        )


def _failures() -> tuple[type[Exception], ...]:
    """What a wrong argument or file ends in."""
    import tensorflow as tf

    return ValueError, TypeError, RuntimeError, OSError, ImportError, tf.errors.OpError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0, or 2 if arguments or file are wrong."""
    parsed = _parser().parse_args(arguments)
    try:
        _inspect(parsed)
    except _failures() as error:
        sentence = getattr(error, "message", None) or str(error)  # TensorFlow's have a message
        print(f"nv_norms_rewriter: {sentence}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
