"""Norms with parameters of each sample, where x or a parameter has one that stands for all."""

from __future__ import annotations

from typing import Any

import formulas
import numpy as np
import pytest
import tensorflow as tf
from channel_norms import EPSILON, FLOAT32, Norm
from row_norms import RowNorm
from support import DTYPES, forward, gradient, random

from nv_norms_rewriter import _gradients, _stock

CHANNELS = [
    Norm((5, 7, 9, 12), "N...C", None, True),
    Norm((3, 12, 33), "NC...", None, True),
    Norm((4, 5, 3, 12), "N...C", 3, True),
    Norm((6, 12, 4, 5), "NC...", 1, True),
]
ROWS = [
    RowNorm((5, 7, 9, 12)),
    RowNorm((4, 6, 33), "RMSNorm"),
    RowNorm((3, 5, 4, 8), axes=2),
    RowNorm((2, 300, 40), subtract_mean=False),
    RowNorm((6, 9)),
    RowNorm((3, 2, 1)),
]
NORMS: list[Norm | RowNorm] = [*CHANNELS, *ROWS]
WITH_SLOPES = [(norm, slope) for norm in CHANNELS for slope in (1.0, 0.0, "silu")]
WITH_SLOPES += [(norm, 1.0) for norm in ROWS]
# Whether x, the scale and the offset have one sample.
SHARED = [
    (True, False, False), (False, True, False), (False, False, True), (False, True, True),
    (True, True, False), (True, False, True),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def registered(ops: Any) -> None:
    _gradients.register(ops)


class Case:
    """The inputs, and what should come out: as if each had all samples, gradients summed."""

    def __init__(
        self, norm: Norm | RowNorm, shared: tuple[bool, ...], slope: Any, dtype: np.dtype
    ) -> None:
        def of_one(value: np.ndarray, one: bool) -> np.ndarray:
            return value[:1] if one else value

        self.norm, self.shared = norm, shared
        self.x = of_one(random(61, norm.shape, dtype), shared[0])
        self.scale = of_one(random(62, norm.params, FLOAT32), shared[1])
        self.offset = of_one(random(63, norm.params, FLOAT32), shared[2])
        x = np.broadcast_to(self.x, norm.shape)
        params = [np.broadcast_to(p, norm.params) for p in (self.scale, self.offset)]
        view, reduced, axes = norm.view(x)
        t, mean, rstd = formulas.norm(view, *params, reduced, axes, EPSILON, norm.formula)
        self.y = formulas.activated(t, slope).reshape(norm.shape)
        self.size = np.sqrt(np.mean(t**2))
        kept = [rstd] if norm.formula == "rms" else [mean, rstd]
        self.statistics = [s.reshape(norm.statistics) for s in kept]
        self.dy = random(64, norm.shape, dtype)
        if slope != 1.0:
            near = formulas.near_zero(view, *params, reduced, axes, EPSILON)
            self.dy[near.reshape(norm.shape)] = 0
        passed = formulas.passed(self.dy.reshape(view.shape), t, slope)
        arguments = (view, params[0], reduced, axes, EPSILON, norm.formula)
        dx, *of_params = formulas.norm_gradient(passed, *arguments)
        sizes = formulas.gradient_sizes(np.abs(passed), *arguments)
        self.dx, self.dx_size = (self.summed(v.reshape(norm.shape), 0) for v in (dx, sizes[0]))
        self.of_params = [d.reshape(norm.params) for d in of_params]
        self.param_sizes = [d.reshape(norm.params) for d in sizes[1:]]

    def summed(self, value: np.ndarray, which: int) -> np.ndarray:
        return value.sum(0, keepdims=True) if self.shared[which] else value


def check(ops: Any, case: Case, slope: Any, device: str) -> None:
    activation = {} if isinstance(case.norm, RowNorm) else formulas.attributes_of(slope)
    attributes = {**activation, **case.norm.attributes}
    given = (case.x, case.scale, case.offset)
    y, *statistics = forward(ops, case.norm.kind, *given, device, **attributes)
    formulas.assert_close(y, case.y, 8, "y", case.size)
    for actual, expected in zip(statistics, case.statistics, strict=True):
        assert actual.shape == expected.shape
        formulas.assert_close(actual, expected, 8, "statistics")
    dx, *of_params = gradient(
        ops, case.norm.kind, case.dy, case.x, case.scale, statistics[0], statistics[-1], device,
        offset=case.offset, **attributes,
    )  # fmt: skip
    assert dx.shape == case.x.shape
    formulas.assert_close(dx, case.dx, 8, "dx", case.dx_size)
    names, sizes = ("dscale", "doffset"), case.param_sizes
    for name, d, expected, size in zip(names, of_params, case.of_params, sizes, strict=True):
        formulas.assert_close(d, expected, 8, name, size)


@pytest.mark.parametrize("norm,slope", WITH_SLOPES, ids=str)
@pytest.mark.parametrize("shared", SHARED, ids=str)
def test_as_if_each_had_all_samples(
    ops: Any, device: str, norm: Norm | RowNorm, shared: tuple[bool, ...], slope: Any
) -> None:
    check(ops, Case(norm, shared, slope, FLOAT32), slope, device)


@pytest.mark.parametrize("norm", ROWS, ids=str)
def test_rows_of_samples(ops: Any, device: str, norm: RowNorm) -> None:
    check(ops, Case(norm, (False, False, False), 1.0, FLOAT32), 1.0, device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [*CHANNELS[:2], *ROWS[:2]], ids=str)
def test_every_type(ops: Any, device: str, norm: Norm | RowNorm, dtype: str) -> None:
    check(ops, Case(norm, (True, False, True), 1.0, DTYPES[dtype]), 1.0, device)


def test_a_wide_dx_of_narrow_x(ops: Any, device: str) -> None:
    """Of one group there is one statistic a sample."""
    case = Case(CHANNELS[3], (True, False, False), 1.0, FLOAT32)
    dx, *_ = gradient(
        ops, "GroupNorm", case.dy, case.x, case.scale,
        *(s.astype(np.float32) for s in case.statistics), device, dx_type=tf.float64,
        **case.norm.attributes,
    )  # fmt: skip
    formulas.assert_close(dx.astype(np.float32), case.dx, 8, "dx", case.dx_size)


@pytest.mark.parametrize("shared", SHARED, ids=str)
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_gradients_of_a_tape_have_the_shapes_of_what_they_are_of(
    ops: Any, device: str, norm: Norm | RowNorm, shared: tuple[bool, ...]
) -> None:
    case = Case(norm, shared, 1.0, FLOAT32)
    with tf.device(device), tf.GradientTape() as tape:
        inputs = [tf.constant(v) for v in (case.x, case.scale, case.offset)]
        tape.watch(inputs)
        y = norm.call(ops, inputs[0], [inputs[1]], [inputs[2]], epsilon=EPSILON)
        got = tape.gradient(y, inputs, output_gradients=tf.constant(case.dy))
    expected = [case.dx, *(case.summed(d, i + 1) for i, d in enumerate(case.of_params))]
    sizes = [case.dx_size, *(case.summed(d, i + 1) for i, d in enumerate(case.param_sizes))]
    for actual, value, size, given in zip(got, expected, sizes, inputs, strict=True):
        assert actual.shape == given.shape
        formulas.assert_close(actual.numpy(), value, 8, "gradient", size)


@pytest.mark.parametrize("shared", SHARED, ids=str)
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_stock_formulas_give_the_same(norm: Norm | RowNorm, shared: tuple[bool, ...]) -> None:
    case = Case(norm, shared, 1.0, FLOAT32)
    op = f"Fused{norm.kind}"
    given = [tf.constant(v) for v in (case.x, case.scale, case.offset)]
    y, *statistics = _stock.forward(
        op, given[0], [given[1]], [given[2]], out_type=tf.float32, epsilon=EPSILON,
        **norm.attributes,
    )  # fmt: skip
    formulas.assert_close(y.numpy(), case.y, 16, "y", case.size)
    assert [s.shape for s in statistics] == [s.shape for s in case.statistics]
    dx, dscale, doffset = _stock.gradient(
        op, tf.constant(case.dy), given[0], [given[1]], statistics[-1], [given[2]],
        num_offset=1,
        dx_type=tf.float32, param_type=tf.float32, **norm.attributes,
    )  # fmt: skip
    formulas.assert_close(dx.numpy(), case.dx, 32, "dx", case.dx_size)
    for actual, expected, size in zip(
        (dscale, doffset), case.of_params, case.param_sizes, strict=True
    ):
        formulas.assert_close(actual.numpy(), expected, 32, "gradient", size)


@pytest.mark.parametrize("norm", [CHANNELS[0], ROWS[0], ROWS[2]], ids=str)
def test_offset_alone_makes_y_larger(ops: Any, device: str, norm: Norm | RowNorm) -> None:
    """Then only dy tells the gradient so."""
    case = Case(norm, (True, False, False), 1.0, FLOAT32)
    with tf.device(device), tf.GradientTape() as tape:
        x, offset = tf.constant(case.x), tf.constant(case.offset)
        tape.watch(x)
        y = norm.call(ops, x, [], [offset], epsilon=EPSILON)
        dx = tape.gradient(y, x, output_gradients=tf.constant(case.dy))
    view, reduced, axes = norm.view(np.broadcast_to(case.x, norm.shape))
    arguments = (view, None, reduced, axes, EPSILON)
    dy = case.dy.astype(np.float64).reshape(view.shape)
    expected = formulas.norm_gradient(dy, *arguments)[0].reshape(norm.shape).sum(0, keepdims=True)
    size = formulas.gradient_sizes(np.abs(dy), *arguments)[0].reshape(norm.shape)
    assert y.shape == norm.shape
    formulas.assert_close(dx.numpy(), expected, 8, "dx", size.sum(0, keepdims=True))


@pytest.mark.parametrize("norm", [CHANNELS[0], ROWS[0], ROWS[1]], ids=str)
def test_no_samples(ops: Any, device: str, norm: Norm | RowNorm) -> None:
    with tf.device(device), tf.GradientTape() as tape:
        x, scale = tf.ones([1, 5, 3]), tf.zeros([0, 3])
        tape.watch([x, scale])
        y = norm.call(ops, x, [scale], [])
        dx, dscale = tape.gradient(y, [x, scale])
    assert y.shape == [0, 5, 3] and dscale.shape == [0, 3]
    np.testing.assert_array_equal(dx.numpy(), np.zeros([1, 5, 3]))


@pytest.mark.parametrize("norm", [CHANNELS[0], ROWS[0]], ids=str)
@pytest.mark.parametrize("samples", [(2, 3), (3, 2), (0, 2)], ids=str)
def test_other_numbers_of_samples_are_refused(
    ops: Any, device: str, norm: Norm | RowNorm, samples: tuple[int, int]
) -> None:
    with tf.device(device), pytest.raises(tf.errors.InvalidArgumentError, match="scale has shape"):
        norm.call(ops, tf.ones([samples[0], 5, 3]), [tf.ones([samples[1], 3])], [])


@pytest.mark.parametrize("axis", [[0], [0, 2], [1], [0, 1, 2]], ids=str)
def test_other_axes_than_the_last_have_no_samples(ops: Any, device: str, axis: list[int]) -> None:
    x = tf.ones([2, 5, 3])
    with tf.device(device), pytest.raises(tf.errors.InvalidArgumentError, match="axis"):
        ops.fused_layer_norm(x=x, scale=[], offset=[], out_type=x.dtype, axis=axis, per_sample=True)


@pytest.mark.parametrize("norm", [CHANNELS[0], ROWS[0], ROWS[1]], ids=str)
@pytest.mark.parametrize(
    "x,scale,y",
    [
        ([None, 5, 3], [None, 3], [None, 5, 3]),
        ([1, 5, 3], [4, 3], [4, 5, 3]),
        ([4, 5, 3], [None, 3], [4, 5, 3]),
        ([4, 5, 3], [1, 3], [4, 5, 3]),
        ([1, 5, 3], [None, 3], [None, 5, 3]),
        ([None, 5, 3], [1, 3], [None, 5, 3]),
        ([None, 5, 3], [4, 3], [4, 5, 3]),
        ([None, 5, 3], None, [None, 5, 3]),
    ],
    ids=str,
)
def test_shapes_while_tracing(ops: Any, norm: Norm | RowNorm, x: Any, scale: Any, y: Any) -> None:
    with tf.Graph().as_default():
        out = norm.call(
            ops, tf.compat.v1.placeholder(tf.float32, x),
            [tf.compat.v1.placeholder(tf.float32, scale)], [],
        )  # fmt: skip
        assert out.shape.as_list() == y
        statistics = out.op.outputs[1].shape.as_list()
        assert statistics == [y[0], 3 if isinstance(norm, Norm) else 5]
