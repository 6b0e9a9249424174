"""Near misses: graphs with Casts beside fused norms that must stay as they are."""

from __future__ import annotations

import pytest
import tensorflow as tf
from casts_graphs import SHAPE, casts, check_unchanged, fused, placeholder, rewritten, types

from fused_graphs import norm, trace
from fused_graphs import norm_grad as gradient

C = SHAPE[-1]
HALF = tf.float16


def _parameters() -> tuple:
    return placeholder("gamma", [C]), placeholder("beta", [C])


def _forward(x, name: str = "y", **kwargs):
    y, *statistics = norm("layer", x, *_parameters(), **kwargs)
    tf.identity(y, name=name)
    return y, statistics


def test_cast_of_x_with_another_reader():
    def make():
        x = tf.cast(placeholder("x"), HALF)
        tf.identity(tf.nn.relu(x), name="other")
        _forward(x)

    check_unchanged(trace(make), ["y", "other"])


def test_cast_of_x_beside_the_same_cast_with_another_reader():
    """The half tensor is there in any case."""

    def make():
        wide = placeholder("x")
        tf.identity(tf.nn.relu(tf.cast(wide, HALF)), name="other")
        _forward(tf.cast(wide, HALF))

    check_unchanged(trace(make), ["y", "other"])


def test_cast_of_x_behind_a_view_with_another_reader():
    def make():
        x = tf.identity(tf.cast(placeholder("x"), HALF))
        tf.identity(tf.nn.relu(x), name="other")
        _forward(x)

    check_unchanged(trace(make), ["y", "other"])


@pytest.mark.parametrize("fetched", ["x_cast", "view"])
def test_cast_of_x_that_is_fetched(fetched):
    def make():
        x = tf.cast(placeholder("x"), HALF, name="x_cast")
        _forward(tf.identity(x, name="view"))

    check_unchanged(trace(make), ["y", fetched])


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (tf.float64, tf.float32),
        (tf.float64, HALF),
        (tf.int32, HALF),
        (tf.float32, tf.float64),
        (HALF, tf.bfloat16),
        (tf.bfloat16, HALF),
    ],
    ids=lambda t: t.name,
)
def test_casts_of_x_between_other_types(wide, narrow):
    check_unchanged(trace(lambda: _forward(tf.cast(placeholder("x", dtype=wide), narrow))), ["y"])


def test_cast_of_x_that_truncates():
    def make():
        x = placeholder("x")
        _forward(tf.raw_ops.Cast(x=x, DstT=HALF, Truncate=True))

    check_unchanged(trace(make), ["y"])


@pytest.mark.parametrize("first", ["/device:CPU:0", "/device:GPU:1"])
def test_cast_of_x_on_another_device(first):
    def make():
        wide = placeholder("x")
        with tf.device(first):
            x = tf.cast(wide, HALF)
        with tf.device("/device:GPU:0"):
            _forward(x)

    check_unchanged(trace(make), ["y"])


def test_cast_of_x_that_waits():
    def make():
        wide = placeholder("x")
        with tf.control_dependencies([placeholder("first", [])]):
            x = tf.cast(wide, HALF)
        _forward(x)

    check_unchanged(trace(make), ["y"])


def test_cast_of_gamma():
    """It is to be rounded first."""

    def make():
        gamma = tf.cast(placeholder("gamma", [C]), HALF)
        beta = tf.cast(placeholder("beta", [C]), HALF)
        tf.identity(norm("layer", placeholder("x", dtype=HALF), gamma, beta)[0], name="y")

    check_unchanged(trace(make), ["y"])


def test_x_that_is_gamma_as_well():
    def make():
        x = tf.cast(placeholder("x", [C]), HALF)
        tf.identity(norm("layer", x, x, x)[0], name="y")

    check_unchanged(trace(make), ["y"])


def test_x_whose_statistics_are_fetched():
    """Who reads them may have a gradient elsewhere, with x as it was rounded."""

    def make():
        _, statistics = _forward(tf.cast(placeholder("x"), HALF))
        tf.identity(statistics[1], name="rstd")

    check_unchanged(trace(make), ["y", "rstd"])


def test_gradient_whose_statistics_come_from_elsewhere():
    def make():
        x = tf.cast(placeholder("x"), HALF)
        statistics = [placeholder(name, SHAPE[:-1]) for name in ("mean", "rstd")]
        dy = placeholder("dy", dtype=HALF)
        dx, _, _ = gradient("layer", dy, x, _parameters()[0], statistics)
        tf.cast(dx, tf.float32, name="dx")

    check_unchanged(trace(make), ["dx"])


def test_gradient_whose_forward_reads_another_cast():
    """Its forward's x stays, as somebody else reads it."""

    def make():
        wide = placeholder("x")
        _, statistics = _forward(placeholder("rounded", dtype=HALF))
        x = tf.cast(wide, HALF)
        dx, _, _ = gradient(
            "layer", placeholder("dy", dtype=HALF), x, placeholder("scale", [C]), statistics
        )
        tf.cast(dx, tf.float32, name="dx")

    check_unchanged(trace(make), ["y", "dx"])


def test_y_with_another_reader():
    def make():
        y, _ = _forward(placeholder("x", dtype=HALF))
        tf.cast(y, tf.float32, name="wide")

    check_unchanged(trace(make), ["y", "wide"], device="CPU")


def test_y_that_is_fetched():
    def make():
        y, _ = _forward(placeholder("x", dtype=HALF), name="unread", **{})
        tf.cast(y, tf.float32, name="wide")

    graph = trace(make)
    (node,) = fused(graph)
    check_unchanged(graph, [node.name, "wide", "unread"], device="CPU")


@pytest.mark.parametrize("wide", [tf.float64, tf.bfloat16, tf.int32], ids=lambda t: t.name)
def test_casts_of_y_to_other_types(wide):
    def make():
        y = norm("layer", placeholder("x", dtype=HALF), *_parameters())[0]
        tf.cast(y, wide, name="y")

    check_unchanged(trace(make), ["y"], device="CPU")


def test_cast_of_y_on_another_device():
    def make():
        with tf.device("/device:CPU:0"):
            y = norm("layer", placeholder("x", dtype=HALF), *_parameters())[0]
        with tf.device("/device:CPU:1"):
            tf.cast(y, tf.float32, name="y")

    check_unchanged(trace(make), ["y"])


def _make_gradient(dy_too: bool, x_too: bool, dx_too: bool) -> None:
    x = placeholder("x", dtype=tf.float32 if x_too else HALF)
    x = tf.cast(x, HALF) if x_too else x
    dy = placeholder("dy", dtype=tf.float32 if dy_too else HALF)
    dy = tf.cast(dy, HALF) if dy_too else dy
    _, statistics = _forward(x)
    dx, _, _ = gradient("layer", dy, x, placeholder("scale", [C]), statistics)
    tf.cast(dx, tf.float32, name="dx") if dx_too else tf.identity(dx, name="dx")


@pytest.mark.parametrize(
    ("dy_too", "x_too", "dx_too"),
    [
        (True, False, False),
        (False, True, False),
        (False, False, True),
        (True, True, False),
        (True, False, True),
    ],
    ids=["dy", "x", "dx", "dy and x", "dy and dx"],
)
def test_gradients_that_would_have_types_without_kernels(dy_too, x_too, dx_too):
    check_unchanged(trace(lambda: _make_gradient(dy_too, x_too, dx_too)), ["y", "dx"])


def test_channels_on_a_cpu_with_dy_in_half():
    """Measured slower there than the Casts; not so in bfloat16, nor on a GPU."""

    def make(narrow: tf.DType) -> None:
        gamma, beta = _parameters()
        x = tf.cast(placeholder("x"), narrow)
        y, *statistics = norm("instance", x, gamma, beta)
        tf.identity(y, name="y")
        dy = placeholder("dy", dtype=narrow)
        dx, _, _ = gradient("instance", dy, x, gamma, statistics)
        tf.cast(dx, tf.float32, name="dx")

    check_unchanged(trace(lambda: make(HALF)), ["y", "dx"], device="CPU")
    for narrow, device in ((HALF, "GPU"), (tf.bfloat16, "CPU"), (tf.bfloat16, "GPU")):
        after = rewritten(trace(lambda narrow=narrow: make(narrow)), ["y", "dx"], device)
        assert casts(after) == []
        assert {types(node)["T"] for node in fused(after)} == {tf.float32}


def test_dx_with_another_reader():
    def make():
        x = tf.cast(placeholder("x"), HALF)
        gamma, _ = _parameters()
        y, *statistics = norm("layer", x, gamma, placeholder("other", [C]))
        tf.cast(y, tf.float32, name="y")
        dx, _, _ = gradient("layer", placeholder("dy", dtype=HALF), x, gamma, statistics)
        tf.cast(dx, tf.float32, name="dx")
        tf.identity(dx, name="half")

    check_unchanged(trace(make), ["y", "dx", "half"])


def test_graph_without_a_fused_norm():
    def make():
        tf.cast(tf.nn.relu(tf.cast(placeholder("x"), HALF)), tf.float32, name="y")

    check_unchanged(trace(make), ["y"])
