"""Shows how to watch graphs being remapped: the log, the ops before and after, the report.

TensorFlow's own remapper fuses a convolution with the bias and the activation behind it, and says
so if TF_CPP_VMODULE=remapper=2 is set before TensorFlow is imported. nv_norms_rewriter's remapper
answers to the same setting. This program runs both on a small function (Conv2D, BiasAdd, Relu, then
a layer norm by hand) and takes the two kinds of lines out of the log.

Usage: python examples/inspect_remapper_log.py [--level 3]   (3: also what was looked at and left)
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter

LINE = re.compile(r"(remapper\.cc:\d+)\] (.*)")


def run() -> None:
    """What a program does that knows nothing of the log; it goes to stderr."""
    import tensorflow as tf

    import nv_norms_rewriter

    tf.random.set_seed(1)
    filters = tf.Variable(tf.random.normal((2, 2, 3, 8)))
    bias = tf.Variable(tf.random.normal((8,)))
    gamma = tf.Variable(tf.random.normal((8,)))
    beta = tf.Variable(tf.random.normal((8,)))

    @tf.function
    def model(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"):
            y = tf.nn.bias_add(tf.nn.conv2d(x, filters, strides=1, padding="SAME"), bias)
            y = tf.nn.relu(y)
            mean, variance = tf.nn.moments(y, [-1], keepdims=True)
            return (y - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta

    x = tf.random.normal((1, 4, 4, 3))
    model(x)
    before = model.get_concrete_function(x).graph.as_graph_def()
    after, report = nv_norms_rewriter.rewrite(before, device="CPU")
    print("\nnv_norms_rewriter.report()\n")
    print(nv_norms_rewriter.report())
    print("\nnv_norms_rewriter.rewrite(): ops of the function, untouched and after this remapper\n")
    counts = [Counter(node.op for node in graph.node) for graph in (before, after)]
    for op in sorted(counts[0] | counts[1]):
        numbers = [count[op] for count in counts]
        if numbers[0] != numbers[1]:
            print(f"  {op:20} {numbers[0]} -> {numbers[1]}")
    print(f"\n{len(before.node)} nodes -> {len(after.node)} nodes, {report.summary()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--level", type=int, default=2, help="of remapper.cc in the log")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run()
        return
    # The log is C++'s: it cannot be caught within the process that writes it, only behind it.
    process = subprocess.run(
        [sys.executable, __file__, "--run"],
        env={
            **os.environ,
            "TF_CPP_VMODULE": f"remapper={options.level}",
            "TF_CPP_MIN_LOG_LEVEL": "0",
        },
        capture_output=True,
        text=True,
    )
    if process.returncode != 0:
        sys.exit(process.stderr)
    lines = [match.groups() for match in map(LINE.search, process.stderr.splitlines()) if match]
    print(f"TF_CPP_VMODULE=remapper={options.level} gives these lines:\n")
    for where, line in dict.fromkeys(lines):
        whose = "TensorFlow" if re.match(r"Fuse \w+ with ", line) else "nv_norms_rewriter"
        print(f"  {whose:18} {where}] {line}")
    print(process.stdout, end="")


if __name__ == "__main__":
    main()
