"""The gradient ops inside XLA against the formulas in float64."""

from __future__ import annotations

import math
from typing import Any

import formulas
import numpy as np
import pytest
import tensorflow as tf
from formulas import statistics
from support import DTYPES, gradient, random
from test_ops_forward import GROUP_CASES, LAYER_CASES

EPSILON = 1e-3
WANTED = [(1, 1, 1), (1, 0, 0), (0, 1, 1), (0, 0, 1), (1, 1, 0)]


def check(actual: list[Any], *arguments: Any) -> None:
    expected, sizes = formulas.norm_gradient(*arguments), formulas.gradient_sizes(*arguments)
    names = ("dx", "dscale", "doffset")
    for name, a, e, size in zip(names, actual, expected, sizes, strict=True):
        if a is None:
            continue
        if name == "dx":
            e, size = e.reshape(a.shape), size.reshape(a.shape)
        else:
            assert a.size == e.size
            e, size = e.reshape(a.shape), size.reshape(a.shape)
        formulas.assert_close(a, e, 4, name, size)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("shape,axis", LAYER_CASES)
def test_layer_norm(
    compiled: Any,
    device: str,
    shape: tuple[int, ...],
    axis: list[int],
    wanted: tuple[int, int, int],
) -> None:
    x, dy = random(31, shape, DTYPES["float32"]), random(32, shape, DTYPES["float32"])
    gamma = random(33, (math.prod(shape[a] for a in axis),), DTYPES["float32"])
    for scale in (gamma, None):
        mean, rstd = statistics(x, axis)
        actual = gradient(
            compiled, "LayerNorm", dy, x, scale, mean, rstd, device, axis=axis, wanted=wanted
        )
        assert [a is not None for a in actual] == [bool(w) for w in wanted]
        check(actual, dy, x, scale, axis, axis, EPSILON)


@pytest.mark.parametrize("shape,axis", LAYER_CASES)
@pytest.mark.parametrize("kind,formula", [("RMSNorm", "rms"), ("LayerNorm", "scale_only")])
def test_rms_norm_and_norms_that_only_scale(
    compiled: Any, device: str, shape: tuple[int, ...], axis: list[int], kind: str, formula: str
) -> None:
    x, dy = random(34, shape, DTYPES["float32"]), random(35, shape, DTYPES["float32"])
    gamma = random(36, (math.prod(shape[a] for a in axis),), DTYPES["float32"])
    mean, rstd = statistics(x, axis, formula)
    extra = {"subtract_mean": False} if kind == "LayerNorm" else {}
    actual = gradient(compiled, kind, dy, x, gamma, mean, rstd, device, axis=axis, **extra)
    check(actual, dy, x, gamma, axis, axis, EPSILON, formula)


@pytest.mark.parametrize("kind", ["InstanceNorm", "GroupNorm"])
@pytest.mark.parametrize("shape,data_format,groups", GROUP_CASES)
def test_group_and_instance_norm(
    compiled: Any, device: str, kind: str, shape: tuple[int, ...], data_format: str, groups: int
) -> None:
    x, dy = random(37, shape, DTYPES["float32"]), random(38, shape, DTYPES["float32"])
    last = data_format == "N...C"
    channels = shape[-1 if last else 1]
    gamma = random(39, (channels,), DTYPES["float32"])
    extra = {"groups": groups} if kind == "GroupNorm" else {}
    view, reduced, params = formulas.grouped(x, extra.get("groups", channels), last)
    shaped = [s.reshape(shape[0], -1) for s in statistics(view, reduced)]
    actual = gradient(
        compiled, kind, dy, x, gamma, *shaped, device, data_format=data_format, **extra
    )
    arguments = (dy.reshape(view.shape), view, gamma, reduced, params, EPSILON)
    check(actual, *arguments)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("x_type", DTYPES)
@pytest.mark.parametrize("dy_type", DTYPES)
@pytest.mark.parametrize(
    "dx_type,param_type", [(None, "float32"), ("float32", "bfloat16"), ("float16", "float16")]
)
def test_every_type(
    compiled: Any, device: str, x_type: str, dy_type: str, dx_type: str | None, param_type: str
) -> None:
    for axis in ([-1], [1]):
        x, dy = random(40, (3, 5, 33), DTYPES[x_type]), random(41, (3, 5, 33), DTYPES[dy_type])
        gamma = random(42, (x.shape[axis[0]],), DTYPES["float32"])
        mean, rstd = statistics(x, axis)
        actual = gradient(
            compiled, "LayerNorm", dy, x, gamma, mean, rstd, device,
            dx_type=DTYPES[dx_type or x_type], param_type=DTYPES[param_type], axis=axis,
        )  # fmt: skip
        assert actual[0].dtype == DTYPES[dx_type or x_type]
        assert actual[1].dtype == actual[2].dtype == DTYPES[param_type]
        check(actual, dy, x, gamma, axis, axis, EPSILON)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm", "InstanceNorm"])
def test_empty_tensors(compiled: Any, device: str, shape: tuple[int, ...], kind: str) -> None:
    zeros = np.zeros(shape, np.float32)
    stat_shape = (shape[0], shape[-1]) if kind == "InstanceNorm" else shape[:-1]
    stat = np.ones(stat_shape, np.float32)
    dx, dscale, doffset = gradient(
        compiled, kind, zeros, zeros, np.ones(shape[-1], np.float32), stat, stat, device
    )
    assert dx.shape == shape
    np.testing.assert_array_equal(dscale, np.zeros(shape[-1]))
    np.testing.assert_array_equal(doffset, np.zeros(shape[-1]))


@pytest.mark.parametrize(
    "kind,shape", [("LayerNorm", (3000, 257)), ("InstanceNorm", (2, 4096, 24))]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits_as_outside_of_xla(
    ops: Any, compiled: Any, device: str, kind: str, shape: tuple[int, ...], dtype: str
) -> None:
    x, dy = random(43, shape, DTYPES[dtype]), random(44, shape, DTYPES[dtype])
    gamma = random(45, shape[-1:], DTYPES["float32"])
    axis = [1] if kind == "InstanceNorm" else [-1]
    mean, rstd = statistics(x, axis)
    arguments = (kind, dy, x, gamma, mean, rstd, device)
    inside = [gradient(compiled, *arguments) for _ in range(3)]
    outside = gradient(ops, *arguments)
    for again in inside:
        for a, b in zip(again, outside, strict=True):
            np.testing.assert_array_equal(a, b)


TAPES = [
    ("layer_norm", {"axis": [-1]}, "center", [3], [3]),
    ("layer_norm", {"axis": [1, 2]}, "center", [1, 2], [1, 2]),
    ("rms_norm", {"axis": [-1]}, "rms", [3], [3]),
    ("instance_norm", {"data_format": "NC..."}, "center", [2, 3], [1]),
    ("group_norm", {"data_format": "N...C", "groups": 1}, "center", [1, 2, 3], [3]),
]


@pytest.mark.parametrize("where", ["tape inside", "tape outside", "all but some masked rows"])
@pytest.mark.parametrize("kind,attributes,formula,reduced,params", TAPES)
def test_tape(
    ops: Any,
    device: str,
    kind: str,
    attributes: dict[str, Any],
    formula: str,
    reduced: list[int],
    params: list[int],
    where: str,
) -> None:
    """The registered gradients; masked: in a batch of which XLA knows only a bound."""
    x = random(51, (4, 4, 3, 5), DTYPES["float32"])
    weight = random(52, x.shape, DTYPES["float32"])
    shape = [x.shape[a] if a in params else 1 for a in range(4)]
    gamma, beta = (random(s, shape, DTYPES["float32"]) for s in (53, 54))
    mask = np.array([True, False, True, True] if "masked" in where else [True] * 4)

    def loss(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        w = tf.constant(weight)
        if "masked" in where:
            x, w = tf.boolean_mask(x, mask), tf.boolean_mask(w, mask)
        op = getattr(ops, f"fused_{kind}")
        y = op(x=x, scale=[gamma], offset=[beta], out_type=tf.float32, **attributes)[0]
        return tf.reduce_sum(y * w)

    def gradients(function: Any, inputs: list[tf.Tensor]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            value = function(*inputs, tf.constant(mask))
        return tape.gradient(value, inputs)

    with tf.device(device):
        inputs = [tf.constant(v) for v in (x, gamma, beta)]
        if where == "tape outside":
            actual = gradients(tf.function(loss, jit_compile=True, autograph=False), inputs)
        else:
            step = tf.function(
                lambda inputs: gradients(loss, inputs), jit_compile=True, autograph=False
            )
            actual = step(inputs)
    dx, dscale, doffset = (tf.convert_to_tensor(a).numpy() for a in actual)
    assert dscale.shape == doffset.shape == gamma.shape
    np.testing.assert_array_equal(dx[~mask], 0)
    epsilon = float(np.float32(1e-3))
    arguments = (weight[mask], x[mask], gamma, reduced, params, epsilon, formula)
    check([dx[mask], dscale, doffset], *arguments)
