"""The forward ops inside XLA against the formulas in float64."""

from __future__ import annotations

import math
from typing import Any

import formulas
import numpy as np
import pytest
import tensorflow as tf
from support import DTYPES, forward, random

LAYER_CASES = [
    ((7, 1), [-1]),
    ((1, 1), [0, 1]),
    ((3, 37), [-1]),
    ((3, 4097), [-1]),
    ((1, 70001), [-1]),
    ((2, 5, 3, 7), [3, 1]),
    ((2, 5, 3, 7), [0, 2]),
    ((2, 300, 9), [1]),
    ((3, 4, 2, 3, 2), [0, 2, 4]),
    ((11,), [0]),
]
GROUP_CASES = [
    ((2, 9, 11, 6), "N...C", 3),
    ((2, 6, 9, 11), "NC...", 3),
    ((3, 50, 32), "N...C", 8),
    ((2, 4, 3, 3, 5), "NC...", 4),
    ((4, 10), "N...C", 5),
]


def check(actual: list[np.ndarray], expected: tuple[np.ndarray, ...]) -> None:
    names = ("y", "mean", "rstd") if len(actual) == 3 else ("y", "rstd")
    expected = expected if len(actual) == 3 else expected[::2]
    for name, a, e in zip(names, actual, expected, strict=True):
        formulas.assert_close(a, e, 8, name)


@pytest.mark.parametrize("shape,axis", LAYER_CASES)
@pytest.mark.parametrize("scale,offset", [(True, True), (False, True), (True, False)])
def test_layer_norm(
    compiled: Any, device: str, shape: tuple[int, ...], axis: list[int], scale: bool, offset: bool
) -> None:
    x = random(1, shape, DTYPES["float32"])
    size = math.prod(shape[a] for a in axis)
    gamma = random(2, (size,), DTYPES["float32"]) if scale else None
    beta = random(3, (size,), DTYPES["float32"]) if offset else None
    actual = forward(compiled, "LayerNorm", x, gamma, beta, device, axis=axis)
    check(actual, formulas.norm(x, gamma, beta, axis, axis, 1e-3))


@pytest.mark.parametrize("shape,axis", LAYER_CASES)
def test_rms_norm(compiled: Any, device: str, shape: tuple[int, ...], axis: list[int]) -> None:
    x = random(4, shape, DTYPES["float32"])
    gamma = random(5, (math.prod(shape[a] for a in axis),), DTYPES["float32"])
    actual = forward(compiled, "RMSNorm", x, gamma, None, device, axis=axis)
    check(actual, formulas.norm(x, gamma, None, axis, axis, 1e-3, "rms"))


@pytest.mark.parametrize("kind", ["InstanceNorm", "GroupNorm"])
@pytest.mark.parametrize("shape,data_format,groups", GROUP_CASES)
def test_group_and_instance_norm(
    compiled: Any, device: str, kind: str, shape: tuple[int, ...], data_format: str, groups: int
) -> None:
    x = random(6, shape, DTYPES["float32"])
    last = data_format == "N...C"
    channels = shape[-1 if last else 1]
    gamma, beta = (random(s, (channels,), DTYPES["float32"]) for s in (7, 8))
    extra = {"groups": groups} if kind == "GroupNorm" else {}
    actual = forward(
        compiled, kind, x, gamma, beta, device, data_format=data_format, epsilon=1e-5, **extra
    )
    view, reduced, params = formulas.grouped(x, extra.get("groups", channels), last)
    y, mean, rstd = formulas.norm(view, gamma, beta, reduced, params, 1e-5)
    statistics = (shape[0], extra.get("groups", channels))
    check(actual, (y.reshape(shape), mean.reshape(statistics), rstd.reshape(statistics)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("x_type", DTYPES)
@pytest.mark.parametrize("param_type", DTYPES)
@pytest.mark.parametrize("out_type", ["bfloat16", "float32"])
def test_every_type(
    compiled: Any, device: str, x_type: str, param_type: str, out_type: str
) -> None:
    for kind, axis in [("LayerNorm", [-1]), ("LayerNorm", [1]), ("RMSNorm", [1, 2])]:
        x = random(9, (3, 5, 33), DTYPES[x_type])
        size = math.prod(x.shape[a] for a in axis)
        gamma = random(10, (size,), DTYPES[param_type])
        actual = forward(compiled, kind, x, gamma, None, device, out_type=out_type, axis=axis)
        assert actual[0].dtype == DTYPES[out_type]
        stat = np.float64 if x_type == "float64" else np.float32
        assert all(a.dtype == stat for a in actual[1:])
        formula = "rms" if kind == "RMSNorm" else "center"
        check(actual, formulas.norm(x, gamma, None, axis, axis, 1e-3, formula))


@pytest.mark.parametrize("epsilon", [1e-3, 1e-12, 0.1, 1e-38, 3.0])
def test_float64_keeps_its_epsilon(compiled: Any, device: str, epsilon: float) -> None:
    x = random(11, (4, 65), DTYPES["float64"], std=1e-3)
    actual = forward(compiled, "LayerNorm", x, device=device, epsilon=epsilon)
    for a, e in zip(actual, formulas.norm(x, None, None, [-1], [-1], epsilon), strict=True):
        formulas.assert_close(a, e, 64)


def test_an_epsilon_that_is_no_number_is_an_error(ops: Any) -> None:
    @tf.function(jit_compile=True)
    def run(x: tf.Tensor) -> Any:
        return ops.fused_rms_norm(
            x=x, scale=[], offset=[], out_type=tf.float32, epsilon=float("inf")
        )

    with pytest.raises(tf.errors.InvalidArgumentError, match="epsilon is inf, expected a finite"):
        run(tf.ones((2, 3)))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm", "InstanceNorm", "GroupNorm"])
def test_empty_tensors(compiled: Any, device: str, shape: tuple[int, ...], kind: str) -> None:
    attributes: dict[str, Any] = {"GroupNorm": {"groups": 1}, "InstanceNorm": {}}.get(
        kind, {"axis": [-1]}
    )
    params = np.ones(shape[-1], np.float32)
    actual = forward(
        compiled, kind, np.zeros(shape, np.float32), params, params, device, **attributes
    )
    stat = {"GroupNorm": (shape[0], 1), "InstanceNorm": (shape[0], shape[-1])}.get(kind, shape[:-1])
    assert actual[0].shape == shape
    for statistic in actual[1:]:
        assert statistic.shape == stat
        assert np.isnan(statistic).all()  # as tf.reduce_mean of nothing


def test_the_op_becomes_one_custom_call(ops: Any, device: str) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def run(x: tf.Tensor) -> Any:
        return ops.fused_layer_norm(x=x, scale=[], offset=[], out_type=tf.float32)[0]

    with tf.device(device):
        x = tf.zeros((4, 8))
        text = run.experimental_get_compiler_ir(x)(stage="optimized_hlo")
    assert text.count('custom_call_target="nv_norms_forward"') == 1
    assert " reduce(" not in text


def test_one_trace_serves_batches_of_any_size(ops: Any, device: str) -> None:
    @tf.function(
        jit_compile=True, autograph=False, input_signature=[tf.TensorSpec([None, None, 33])]
    )
    def run(x: tf.Tensor) -> Any:
        return ops.fused_layer_norm(x=x, scale=[], offset=[], out_type=tf.float32, epsilon=1e-3)

    for batch in (1, 5, 0, 3):
        x = random(12, (batch, 2, 33), DTYPES["float32"])
        with tf.device(device):
            actual = [a.numpy() for a in run(x)]
        epsilon = float(np.float32(1e-3))
        check(actual, formulas.norm(x, None, None, [-1], [-1], epsilon))
    assert run.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("axis,kept", [([-1], [True, False, True, True]), ([0], [False, True] * 2)])
def test_a_size_that_only_the_data_tell(
    ops: Any, device: str, axis: list[int], kept: list[bool]
) -> None:
    """What XLA calls a dynamic dimension: of the result of boolean_mask only a bound is known."""

    @tf.function(jit_compile=True, autograph=False)
    def run(x: tf.Tensor, mask: tf.Tensor) -> Any:
        return ops.fused_layer_norm(
            x=tf.boolean_mask(x, mask), scale=[], offset=[], out_type=tf.float32, axis=axis
        )

    x = random(13, (4, 19), DTYPES["float32"])
    with tf.device(device):
        actual = [a.numpy() for a in run(x, tf.constant(kept))]
    epsilon = float(np.float32(1e-3))
    check(actual, formulas.norm(x[np.array(kept)], None, None, axis, axis, epsilon))


@pytest.mark.parametrize("groups", [-1, 2])
def test_group_norm_of_a_batch_that_only_the_data_tell(ops: Any, device: str, groups: int) -> None:
    x = random(14, (4, 3, 5, 6), DTYPES["float32"])
    gamma, beta = (random(s, (6,), DTYPES["float32"]) for s in (15, 16))
    name = "fused_instance_norm" if groups == -1 else "fused_group_norm"
    extra = {} if groups == -1 else {"groups": groups}

    @tf.function(jit_compile=True, autograph=False)
    def run(x: tf.Tensor, mask: tf.Tensor) -> Any:
        masked = tf.boolean_mask(x, mask)
        return getattr(ops, name)(
            x=masked, scale=[gamma], offset=[beta], out_type=tf.float32, **extra
        )

    mask = np.array([True, False, False, True])
    with tf.device(device):
        actual = [a.numpy() for a in run(x, tf.constant(mask))]
    view, reduced, params = formulas.grouped(x[mask], 6 if groups == -1 else groups, True)
    y, mean, rstd = formulas.norm(view, gamma, beta, reduced, params, float(np.float32(1e-3)))
    check(actual, (y.reshape(2, 3, 5, 6), mean.reshape(2, -1), rstd.reshape(2, -1)))


def test_neighbours_may_want_other_layouts(ops: Any, device: str) -> None:
    """x comes from a transpose, which XLA would rather do by another layout of the same buffer."""

    @tf.function(jit_compile=True, autograph=False)
    def run(x: tf.Tensor) -> Any:
        turned = tf.transpose(x, [2, 0, 1])
        y = ops.fused_layer_norm(x=turned, scale=[], offset=[], out_type=tf.float32)[0]
        return tf.transpose(y, [1, 2, 0]) + x

    x = random(17, (5, 37, 11), DTYPES["float32"])
    with tf.device(device):
        actual = run(x).numpy()
    y, _, _ = formulas.norm(
        np.transpose(x, (2, 0, 1)), None, None, [-1], [-1], float(np.float32(1e-3))
    )
    formulas.assert_close(actual, np.transpose(y, (1, 2, 0)) + x, 8)


def test_x_is_still_there_afterwards(ops: Any, device: str) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def run(x: tf.Tensor) -> Any:
        x = tf.exp(x)
        y = ops.fused_rms_norm(x=x, scale=[], offset=[], out_type=tf.float32)[0]
        return y, tf.exp(tf.math.log(x) - 1.0)

    x = random(18, (65, 129), DTYPES["float32"], std=0.5)
    with tf.device(device):
        y, after = run(x)
    expected = np.exp(x.astype(np.float64))
    formulas.assert_close(after.numpy(), expected / math.e, 16)
    epsilon = float(np.float32(1e-3))
    rms = formulas.norm(expected, None, None, [-1], [-1], epsilon, "rms")[0]
    formulas.assert_close(y.numpy(), rms, 16)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "kind,shape", [("LayerNorm", (3000, 257)), ("InstanceNorm", (2, 4096, 24))]
)
def test_the_same_bits_as_outside_of_xla(
    ops: Any, compiled: Any, device: str, kind: str, shape: tuple[int, ...], dtype: str
) -> None:
    x = random(19, shape, DTYPES[dtype])
    gamma = random(20, shape[-1:], DTYPES["float32"])
    inside = [forward(compiled, kind, x, gamma, gamma, device) for _ in range(3)]
    outside = forward(ops, kind, x, gamma, gamma, device)
    for again in inside:
        for a, b in zip(again, outside, strict=True):
            np.testing.assert_array_equal(a, b)


def test_many_at_once_on_few_threads(ops: Any) -> None:
    """Calls run in the threads that they share their work with: none may wait for ever."""

    @tf.function(jit_compile=True, autograph=False)
    def run(xs: list[tf.Tensor]) -> Any:
        return [
            ops.fused_layer_norm(x=tf.nn.relu(x), scale=[], offset=[], out_type=tf.float32)[0]
            for x in xs
        ]

    xs = [random(21 + i, (512, 301), DTYPES["float32"]) for i in range(8)]
    with tf.device("/device:CPU:0"):
        for _ in range(20):
            actual = run(xs)
    epsilon = float(np.float32(1e-3))
    for x, y in zip(xs, actual, strict=True):
        expected = formulas.norm(np.maximum(x, 0), None, None, [-1], [-1], epsilon)[0]
        formulas.assert_close(y.numpy(), expected, 8)
