"""The forward ops against the formulas in float64: every type, layout and odd size."""

from __future__ import annotations

from typing import Any

import formulas
import numpy as np
import pytest
import tensorflow as tf
from support import DTYPES, forward, random

import oracle

BOTH = [(True, True), (True, False), (False, True), (False, False)]
LAYER_SHAPES = [
    ((7, 1), [-1]),
    ((1, 1), [0, 1]),
    ((5, 3), [-1]),
    ((3, 37), [-1]),
    ((4, 256), [1]),
    ((2, 1000), [-1]),
    ((3, 4097), [-1]),
    ((1, 70001), [-1]),
    ((2, 5, 3, 7), [-1, -2]),
    ((2, 5, 3, 7), [3, 1]),
    ((2, 5, 3, 7), [0]),
    ((2, 5, 3, 7), [0, 2]),
    ((2, 5, 3, 7), [1]),
    ((2, 5, 1, 7), [1, 2]),
    ((2, 300, 9), [1]),
    ((3, 4, 2, 3, 2), [0, 2, 4]),
    ((11,), [0]),
]


def layer(
    ops: Any, x: np.ndarray, axis: list[int], device: str, scale: bool, offset: bool, **kwargs: Any
) -> tuple[list[np.ndarray], tuple[np.ndarray, ...]]:
    """Outputs of FusedLayerNorm and what they should be."""
    dtype = kwargs.pop("param_type", DTYPES["float32"])
    size = int(np.prod([x.shape[a] for a in axis]))
    gamma = random(11, (size,), dtype, mean=1.0) if scale else None
    beta = random(12, (size,), dtype) if offset else None
    actual = forward(ops, "LayerNorm", x, gamma, beta, device, axis=axis, **kwargs)
    return actual, formulas.norm(x, gamma, beta, axis, axis, kwargs.get("epsilon", 1e-3))


def check(actual: list[np.ndarray], expected: tuple[np.ndarray, ...], units: float = 8.0) -> None:
    for name, a, e in zip(("y", "mean", "rstd"), actual, expected, strict=True):
        formulas.assert_close(a, e, units, name)


@pytest.mark.parametrize("scale,offset", BOTH)
@pytest.mark.parametrize("shape,axis", LAYER_SHAPES)
def test_layer_norm_of_every_shape(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int], scale: bool, offset: bool
) -> None:
    x = random(1, shape, DTYPES["float32"])
    check(*layer(ops, x, axis, device, scale, offset))


@pytest.mark.parametrize("out_type", DTYPES)
@pytest.mark.parametrize("param_type", DTYPES)
@pytest.mark.parametrize("x_type", DTYPES)
def test_layer_norm_of_every_type(
    ops: Any, device: str, x_type: str, param_type: str, out_type: str
) -> None:
    for shape, axis in [
        ((5, 33), [-1]),
        ((3, 512), [-1]),
        ((2, 9, 5), [1]),
        ((2, 3, 4, 5), [0, 2]),
    ]:
        x = random(2, shape, DTYPES[x_type])
        actual, expected = layer(
            ops,
            x,
            axis,
            device,
            True,
            True,
            param_type=DTYPES[param_type],
            out_type=DTYPES[out_type],
        )
        assert actual[0].dtype == DTYPES[out_type]
        assert (
            actual[1].dtype
            == actual[2].dtype
            == (np.float64 if x_type == "float64" else np.float32)
        )
        if out_type == "float64" and (x_type, param_type) != ("float64", "float64"):
            check(actual, expected, 16)  # in double throughout, also where x is narrower
        else:
            check(actual, expected)


@pytest.mark.parametrize("mean", [1e4, 1e5, 1e6, -1e6])
@pytest.mark.parametrize(
    "shape,axis", [((4, 4096), [-1]), ((2, 100000), [-1]), ((2, 4000, 3), [1])]
)
def test_a_large_mean_costs_no_precision(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int], mean: float
) -> None:
    x = random(3, shape, DTYPES["float32"], mean=mean, std=1.0)
    check(*layer(ops, x, axis, device, True, True))


# On a CPU as many rows as a vector has lanes are computed at once, each in a lane of its own.
@pytest.mark.parametrize("columns", [3, 17])
def test_a_large_mean_costs_short_rows_no_precision(ops: Any, columns: int) -> None:
    x = random(3, (100, columns), DTYPES["float32"], mean=1e4, std=1.0)
    check(*layer(ops, x, [-1], "/device:CPU:0", True, True))


@pytest.mark.parametrize("shape,axis", [((4, 777), [-1]), ((2, 50000), [-1]), ((2, 600, 3), [1])])
def test_a_first_element_far_from_the_others_costs_no_precision(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int]
) -> None:
    x = random(4, shape, DTYPES["float32"], mean=0.0, std=1.0)
    x[(slice(None), 0)] = 1e4
    (y, *_), (expected, *_) = layer(ops, x, axis, device, False, False)
    # Element by element: the outlier must not hide the others' error.
    rest = (slice(None), slice(1, None))
    formulas.assert_close(y[rest], expected[rest], 8, "y")


# A CPU guesses the mean of a row of 16-bit numbers by its first ones.
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("columns", [130, 768, 5000])
@pytest.mark.parametrize("count", [1, 16, 70])
@pytest.mark.parametrize("far", [30.0, -1e4])
def test_first_elements_of_16_bits_far_from_the_others_cost_no_precision(
    ops: Any, device: str, dtype: str, columns: int, count: int, far: float
) -> None:
    x = random(4, (40, columns), DTYPES["float32"])
    x[:, :count] += far
    x = x.astype(DTYPES[dtype])
    check(*layer(ops, x, [-1], device, False, False))


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 12345.678, -1e6])
@pytest.mark.parametrize("shape,axis", [((3, 1000), [-1]), ((2, 40000), [-1]), ((2, 1000, 3), [1])])
def test_a_constant_row_gives_exactly_offset(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int], value: float
) -> None:
    x = np.full(shape, value, np.float32)
    size = int(np.prod([x.shape[a] for a in axis]))
    beta = random(5, (size,), DTYPES["float32"])
    y, mean, rstd = forward(ops, "LayerNorm", x, None, beta, device, axis=axis)
    np.testing.assert_array_equal(y, np.broadcast_to(oracle.along(beta, shape, tuple(axis)), shape))
    np.testing.assert_array_equal(mean, np.float32(value))
    np.testing.assert_allclose(rstd, 1 / np.sqrt(np.float64(np.float32(1e-3))), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape,axis", [((6, 100), [-1]), ((3, 40000), [-1]), ((3, 50, 4), [1])])
def test_nan_and_infinity_stay_in_their_row(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int], bad: float
) -> None:
    x = random(6, shape, DTYPES["float32"])
    at = (1, 17) if len(shape) == 2 else (1, 17, 2)
    x[at] = bad
    y, mean, rstd = forward(ops, "LayerNorm", x, device=device, axis=axis)
    spoilt = np.zeros(shape, bool)
    spoilt[(1, slice(None)) if len(shape) == 2 else (1, slice(None), 2)] = True
    assert np.isnan(y[spoilt]).all()
    x[spoilt] = 0
    expected = formulas.norm(x, None, None, axis, axis, 1e-3)[0]
    formulas.assert_close(y[~spoilt], expected[~spoilt], 4, "the other rows")


@pytest.mark.parametrize("cols", [8, 64, 3000])
@pytest.mark.parametrize("rows", [3, 60, 61])
def test_infinity_of_rms_norm_is_nan_alone(ops: Any, rows: int, cols: int) -> None:
    """The root mean square is infinite, so the others of the row are 0."""
    x = random(9, (rows, cols), DTYPES["float32"])
    x[1, 4] = np.inf
    y, rstd = forward(ops, "RMSNorm", x, device="/device:CPU:0", axis=[-1])
    assert np.isnan(y[1, 4]) and np.isnan(y).sum() == 1
    assert (np.delete(y[1], 4) == 0).all() and rstd[1] == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "shape,axis",
    [
        ((5, 3), [0]),
        ((9, 130), [0]),
        ((2, 700, 7), [1]),
        ((3, 4, 5, 6), [1, 3]),
        ((4, 5, 3), [0, 1]),
    ],
)
def test_infinity_of_rms_norm_over_other_axes_is_nan_alone(
    ops: Any, shape: tuple[int, ...], axis: list[int], dtype: str
) -> None:
    x = random(10, shape, DTYPES[dtype])
    at = tuple(size // 2 for size in shape)
    x[at] = -np.inf
    y, rstd = forward(ops, "RMSNorm", x, device="/device:CPU:0", axis=axis)
    assert np.isnan(y[at]) and np.isnan(y).sum() == 1
    of_one = tuple(slice(None) if i in axis else at[i] for i in range(len(shape)))
    assert (y == 0).sum() == y[of_one].size - 1 and (rstd == 0).sum() == 1


@pytest.mark.parametrize("cols", [5, 112, 113, 128, 500, 3000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_root_that_is_infinite(ops: Any, dtype: str, cols: int) -> None:
    """x * inf, as in the formula: in rows of any length, and along other axes."""
    x = np.full((3, cols), 2, DTYPES[dtype])
    x[1] = -2
    settings: dict[str, Any] = {"subtract_mean": False, "epsilon": 0.0, "device": "/device:CPU:0"}
    for scale in (None, np.full(cols, 0.5, np.float32)):
        of_rows = forward(ops, "LayerNorm", x, scale, **settings)[0]
        of_columns = forward(ops, "LayerNorm", x.T.copy(), scale, axis=[0], **settings)[0]
        for y in (of_rows, of_columns.T):
            assert (y == np.where(x > 0, np.inf, -np.inf)).all()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("axis", [[-1], [1]])
def test_empty_tensors(ops: Any, device: str, shape: tuple[int, ...], axis: list[int]) -> None:
    size = shape[axis[0]]
    y, mean, rstd = forward(
        ops,
        "LayerNorm",
        np.zeros(shape, np.float32),
        np.ones(size, np.float32),
        np.ones(size, np.float32),
        device,
        axis=axis,
    )
    kept = tuple(n for i, n in enumerate(shape) if i != axis[0] % len(shape))
    assert y.shape == shape and mean.shape == rstd.shape == kept
    assert np.isnan(mean).all() and np.isnan(rstd).all()  # as tf.reduce_mean of nothing


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [7, 64, 1000])
def test_unaligned_slices(ops: Any, device: str, dtype: str, cols: int) -> None:
    """A slice of the first axis shares its buffer, so it starts wherever its first row does."""
    x = random(7, (9, cols), DTYPES[dtype])
    gamma = random(8, (3, cols), DTYPES["float32"])
    with tf.device(device):
        whole, scales = tf.constant(x), tf.constant(gamma)

        @tf.function(autograph=False)
        def run() -> Any:
            return ops.fused_layer_norm(
                x=whole[1:4],
                scale=[scales[1]],
                offset=[scales[2]],
                out_type=whole.dtype,
                U=tf.float64 if dtype == "float64" else tf.float32,
            )

        outputs = [o.numpy() for o in run()]
    epsilon = float(np.float32(1e-3))  # the attribute's default
    check(outputs, formulas.norm(x[1:4], gamma[1], gamma[2], [-1], [-1], epsilon))


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-12, 0.1])
def test_float64_keeps_its_epsilon(ops: Any, device: str, epsilon: float) -> None:
    x = random(9, (4, 65), DTYPES["float64"], std=1e-3)
    actual, expected = layer(
        ops, x, [-1], device, True, True, param_type=DTYPES["float64"], epsilon=epsilon
    )
    check(actual, expected, units=64)


@pytest.mark.parametrize("shape,axis", [((5, 200), [-1]), ((1, 40000), [-1]), ((2, 30, 7), [1])])
def test_scale_only_divides_x_by_its_deviation(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int]
) -> None:
    x = random(10, shape, DTYPES["float32"])
    gamma = random(11, (shape[axis[0]],), DTYPES["float32"])
    actual = forward(ops, "LayerNorm", x, gamma, None, device, axis=axis, subtract_mean=False)
    check(actual, formulas.norm(x, gamma, None, axis, axis, 1e-3, "scale_only"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape,axis", LAYER_SHAPES)
def test_rms_norm(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int], dtype: str
) -> None:
    x = random(13, shape, DTYPES[dtype])
    size = int(np.prod([shape[a] for a in axis]))
    gamma = random(14, (size,), DTYPES["float32"])
    y, rstd = forward(ops, "RMSNorm", x, gamma, None, device, axis=axis)
    expected = formulas.norm(x, gamma, None, axis, axis, 1e-3, "rms")
    formulas.assert_close(y, expected[0], 8, "y")
    formulas.assert_close(rstd, expected[2], 4, "rstd")


GROUP_SHAPES = [
    ((2, 5, 12), [1, 2, 3, 12]),
    ((3, 12), [1, 4, 12]),
    ((2, 7, 5, 6), [1, 2, 6]),
    ((1, 3, 4, 5, 8), [1, 8]),
    ((2, 33, 33, 32), [4, 32]),
    ((2, 1, 1, 64), [1, 8, 64]),
    ((1, 2, 20000, 4), [1, 2, 4]),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape,groups", GROUP_SHAPES)
def test_group_norm(
    ops: Any,
    device: str,
    shape: tuple[int, ...],
    groups: list[int],
    dtype: str,
    channels_last: bool,
) -> None:
    x = random(15, shape, DTYPES[dtype])
    if not channels_last:
        x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    channels = shape[-1]
    gamma = random(16, (channels,), DTYPES["float32"])
    beta = random(17, (channels,), DTYPES["float32"])
    for count in groups:
        actual = forward(
            ops,
            "GroupNorm",
            x,
            gamma,
            beta,
            device,
            groups=count,
            data_format="N...C" if channels_last else "NC...",
        )
        view, reduced, params = formulas.grouped(x, count, channels_last)
        y, mean, rstd = formulas.norm(view, gamma, beta, reduced, params, 1e-3)
        stat = (shape[0], count)
        check(actual, (y.reshape(x.shape), mean.reshape(stat), rstd.reshape(stat)))


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("shape", [shape for shape, _ in GROUP_SHAPES])
@pytest.mark.parametrize("scale,offset", BOTH)
def test_instance_norm(
    ops: Any, device: str, shape: tuple[int, ...], channels_last: bool, scale: bool, offset: bool
) -> None:
    x = random(18, shape, DTYPES["float32"], mean=100.0)
    if not channels_last:
        x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    channels = shape[-1]
    gamma = random(19, (channels,), DTYPES["float32"]) if scale else None
    beta = random(20, (channels,), DTYPES["float32"]) if offset else None
    data_format = "N...C" if channels_last else "NC..."
    actual = forward(ops, "InstanceNorm", x, gamma, beta, device, data_format=data_format)
    view, reduced, params = formulas.grouped(x, channels, channels_last)
    y, mean, rstd = formulas.norm(view, gamma, beta, reduced, params, 1e-3)
    stat = (shape[0], channels)
    check(actual, (y.reshape(x.shape), mean.reshape(stat), rstd.reshape(stat)))


@pytest.mark.parametrize(
    "shape,axis", [((64, 1000), [-1]), ((3, 99999), [-1]), ((3, 5000, 6), [1])]
)
def test_the_same_bits_every_time(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int]
) -> None:
    x = random(21, shape, DTYPES["float32"])
    first, _ = layer(ops, x, axis, device, True, True)
    for _ in range(5):
        again, _ = layer(ops, x, axis, device, True, True)
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def test_parameters_may_have_any_shape(ops: Any, device: str) -> None:
    x = random(22, (2, 3, 4, 5), DTYPES["float32"])
    gamma = random(23, (1, 4, 1, 5), DTYPES["float32"])
    actual = forward(ops, "LayerNorm", x, gamma, None, device, axis=[2, 3])
    check(actual, formulas.norm(x, gamma.reshape(4, 5), None, [2, 3], [2, 3], 1e-3))


def test_an_input_that_is_still_needed_is_left_alone(ops: Any, device: str) -> None:
    value = random(24, (16, 128), DTYPES["float32"])
    with tf.device(device):
        x = tf.constant(value)
        ops.fused_layer_norm(x=x, scale=[], offset=[], out_type=tf.float32)
        np.testing.assert_array_equal(x.numpy(), value)


def test_output_in_the_input_s_buffer(ops: Any, device: str) -> None:
    """A temporary that nobody else reads may be overwritten; the result is the same."""
    value = random(25, (16, 40), DTYPES["float32"])
    for axis in ([1], [0]):
        with tf.device(device):

            @tf.function(autograph=False)
            def run(x: tf.Tensor, axis: list[int] = axis) -> Any:
                return ops.fused_layer_norm(
                    x=x + 1.0, scale=[], offset=[], out_type=tf.float32, axis=axis
                )[0]

            y = run(tf.constant(value)).numpy()
        formulas.assert_close(y, formulas.norm(value + 1, None, None, axis, axis, 1e-3)[0], 4)


@pytest.mark.parametrize("kind,outputs", [
    ("layer_norm", ["y", "mean", "rstd"]), ("rms_norm", ["y", "rstd"]),
    ("instance_norm", ["y", "mean", "rstd"]), ("group_norm", ["y", "mean", "rstd"]),
])  # fmt: skip
@pytest.mark.parametrize("read", ["y", "y mean", "y rstd", "y mean rstd", "rstd"])
@pytest.mark.parametrize("shape", [(4, 6, 8), (4, 0, 8), (0, 6, 8)], ids=str)
def test_only_statistics_that_are_read_are_made(
    ops: Any, device: str, kind: str, outputs: list[str], read: str, shape: tuple[int, ...]
) -> None:
    value = random(26, shape, DTYPES["float32"])
    wanted = [name for name in outputs if name in read.split()]
    attributes: dict[str, Any] = {"groups": 2} if kind == "group_norm" else {}
    with tf.Graph().as_default(), tf.device(device):
        x = tf.compat.v1.placeholder(tf.float32, shape)
        call = getattr(ops, f"fused_{kind}")
        out = call(x=x, scale=[], offset=[], out_type=tf.float32, name="norm", **attributes)
        with tf.compat.v1.Session() as session:
            options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
            seen = tf.compat.v1.RunMetadata()
            fetches = [tf.identity(out[outputs.index(name)]) for name in wanted]
            got = session.run(fetches, {x: value}, options, seen)
    slots = {
        output.slot
        for stats in seen.step_stats.dev_stats
        for node in stats.node_stats
        if node.node_name == "norm"
        for output in node.output
    }
    assert slots - {0} == {outputs.index(name) for name in wanted} - {0}
    if value.size == 0:
        return
    reduced = {"instance_norm": [1], "group_norm": [1, 3]}.get(kind, [2])
    split = value.reshape(*shape[:2], 2, shape[2] // 2) if kind == "group_norm" else value
    if kind == "rms_norm":
        expected = formulas.norm(split, None, None, reduced, reduced, 1e-3, "rms")
    else:
        expected = formulas.norm(split, None, None, reduced, [2], 1e-3)
    right = dict(zip(("y", "mean", "rstd"), expected, strict=True))
    for name, array in zip(wanted, got, strict=True):
        formulas.assert_close(array.reshape(right[name].shape), right[name], 8, name)
