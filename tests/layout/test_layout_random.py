"""Random graphs of norms, elementwise ops and Transposes: the numbers stay, and exactly as many
Transposes are left as the best of all assignments of layouts needs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from layout_graphs import NORMS, to_first, to_last, transposes

import nv_norms_rewriter
from fused_graphs import norm, placeholder, run

LAST, FIRST = (2, 3, 4, 6), (2, 6, 3, 4)  # the shape tells the layout


class RandomGraph:
    """Values are tensors but for their layout; `of` holds the tensors of each in either layout."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.of: list[dict[bool, tf.Tensor]] = []  # value -> is last -> tensor
        self.producer: list[int | bool] = []  # value -> node, or the layout that it has for ever
        self.readers: list[list[int | bool]] = []  # value -> the same for each reader
        self.is_norm: list[bool] = []  # node -> ...
        self.layout: list[bool] = []  # node -> its layout in the graph
        self.transposes: list[int] = []  # value -> how many Transposes of it there are
        self.feeds: dict[str, np.ndarray] = {}
        self.fetches: list[str] = []

    def value(self, tensor: tf.Tensor, producer: int | bool) -> None:
        self.of.append({tuple(tensor.shape) == LAST: tensor})
        self.producer.append(producer)
        self.readers.append([])
        self.transposes.append(0)

    def read(self, value: int, last: bool, reader: int | bool) -> tf.Tensor:
        self.readers[value].append(reader)
        tensors = self.of[value]
        # Sometimes one more Transpose of a tensor that has one.
        if last not in tensors or (self.rng.random() < 0.2 and len(tensors) == 2):
            other = tensors[not last]
            self.transposes[value] += 1
            tensors[last] = to_last(other) if last else to_first(other)
        return tensors[last]

    def add_input(self) -> None:
        last = bool(self.rng.random() < 0.5)
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.rng.normal(size=LAST if last else FIRST)
        self.value(placeholder(name, LAST if last else FIRST, tf.float64), last)

    def add_node(self) -> None:
        node = len(self.layout)
        last = bool(self.rng.random() < 0.5)
        self.layout.append(last)
        choice = int(self.rng.integers(6))
        self.is_norm.append(choice < 2)
        x = self.read(int(self.rng.integers(len(self.of))), last, node)
        if choice < 2:
            y = norm(str(self.rng.choice(NORMS)), x, last=last)[0]
        elif choice < 4:
            y = x - self.read(int(self.rng.integers(len(self.of))), last, node)
        else:
            y = tf.nn.relu(x) if choice == 4 else tf.constant(1.5, tf.float64) * x
        self.value(y, node)

    def add_output(self, value: int) -> None:
        last = bool(self.rng.random() < 0.5)
        name = f"y{len(self.fetches)}"
        self.fetches.append(name)
        tf.identity(self.read(value, last, last), name=name)

    def fewest(self) -> int:
        """How many Transposes should be left."""
        owner = list(range(len(self.layout) + len(self.of)))  # nodes, then values: union-find

        def root(item: int) -> int:
            while owner[item] != item:
                item = owner[item]
            return item

        def is_node(user: int | bool) -> bool:
            return not isinstance(user, bool)

        for value, users in enumerate(self.readers):
            for user in (self.producer[value], *users):
                if is_node(user):
                    owner[root(user)] = root(len(self.layout) + value)
        total = 0
        for part in {root(len(self.layout) + value) for value in range(len(self.of))}:
            values = [v for v in range(len(self.of)) if root(len(self.layout) + v) == part]
            nodes = [n for n in range(len(self.layout)) if root(n) == part]
            there = sum(self.transposes[v] for v in values)
            if not any(self.is_norm[n] for n in nodes):
                total += there
                continue

            def cost(layouts: dict[int, bool], values=values) -> int:
                def layout(user: int | bool) -> bool:
                    return layouts[user] if is_node(user) else user

                return sum(
                    any(layout(r) != layout(self.producer[v]) for r in self.readers[v])
                    for v in values
                )

            now = cost({n: self.layout[n] for n in nodes})
            best = min(
                cost(dict(zip(nodes, layouts, strict=True)))
                for layouts in itertools.product((False, True), repeat=len(nodes))
            )
            total += best if best < now else there
        return total


@pytest.mark.parametrize("number", range(60))
def test_random_graph(number, rng):
    with tf.Graph().as_default() as tf_graph:
        made = RandomGraph(rng)
        for _ in range(int(rng.integers(1, 4))):
            made.add_input()
        for _ in range(int(rng.integers(2, 10))):
            made.add_node()
        for value in range(len(made.of)):
            if not made.readers[value] or rng.random() < 0.2:
                made.add_output(value)
    graph = tf_graph.as_graph_def()
    rewritten, _ = nv_norms_rewriter.rewrite(graph, fetches=made.fetches)
    for name, stock, got in zip(
        made.fetches,
        run(graph, made.feeds, made.fetches),
        run(rewritten, made.feeds, made.fetches),
        strict=True,
    ):
        np.testing.assert_allclose(got, stock, 1e-9, 1e-9, err_msg=name)
    assert transposes(graph) == sum(made.transposes)
    assert transposes(rewritten) == made.fewest()
    again, report = nv_norms_rewriter.rewrite(rewritten, fetches=made.fetches)
    assert again == rewritten and not report.fused
