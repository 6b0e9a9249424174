"""The gradient ops against the formulas in float64: every type, layout and odd size."""

from __future__ import annotations

import math
from typing import Any

import formulas
import numpy as np
import pytest
import tensorflow as tf
from formulas import statistics
from support import DTYPES, forward, gradient, random
from test_forward import GROUP_SHAPES, LAYER_SHAPES

import oracle

EPSILON = 1e-3
ALL = [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]


Expected = tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]


def expect(*arguments: Any) -> Expected:
    """The gradients, and the sizes of what they are sums of."""
    return formulas.norm_gradient(*arguments), formulas.gradient_sizes(*arguments)


def check(actual: list[Any], expected: Expected, units: float = 4.0) -> None:
    names = ("dx", "dscale", "doffset")
    for name, a, e, size in zip(names, actual, *expected, strict=True):
        if a is not None:
            formulas.assert_close(a, e, units, name, size)


def layer(
    ops: Any,
    shape: tuple[int, ...],
    axis: list[int],
    device: str,
    x: np.ndarray | None = None,
    scaled: bool = True,
    **kwargs: Any,
) -> tuple[list[Any], Expected]:
    """Outputs of FusedLayerNormGrad and what they should be."""
    x = random(31, shape, DTYPES["float32"]) if x is None else x
    dy = random(32, shape, kwargs.pop("dy_type", x.dtype))
    size = math.prod(shape[a] for a in axis)
    gamma = random(33, (size,), kwargs.pop("scale_type", DTYPES["float32"])) if scaled else None
    mean, rstd = statistics(x, axis)
    actual = gradient(ops, "LayerNorm", dy, x, gamma, mean, rstd, device, axis=axis, **kwargs)
    return actual, expect(dy, x, gamma, axis, axis, EPSILON)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wanted", ALL)
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("shape,axis", LAYER_SHAPES)
def test_layer_norm_of_every_shape(
    ops: Any,
    device: str,
    shape: tuple[int, ...],
    axis: list[int],
    scaled: bool,
    wanted: tuple[int, int, int],
) -> None:
    actual, expected = layer(ops, shape, axis, device, scaled=scaled, wanted=wanted)
    assert [a is not None for a in actual] == [bool(w) for w in wanted]
    check(actual, expected)


@pytest.mark.parametrize("x_type", DTYPES)
@pytest.mark.parametrize("dy_type", DTYPES)
@pytest.mark.parametrize("scale_type,dx_type,param_type", [
    ("float32", None, "float32"), (None, None, None), ("float32", "float32", "float16"),
    ("bfloat16", "float16", "float64"), ("float64", "bfloat16", "bfloat16"),
])  # fmt: skip
def test_layer_norm_of_every_type(
    ops: Any,
    device: str,
    x_type: str,
    dy_type: str,
    scale_type: str | None,
    dx_type: str | None,
    param_type: str | None,
) -> None:
    for shape, axis in [
        ((5, 33), [-1]),
        ((3, 512), [-1]),
        ((2, 9, 5), [1]),
        ((2, 3, 4, 5), [0, 2]),
    ]:
        x = random(34, shape, DTYPES[x_type])
        actual, expected = layer(
            ops,
            shape,
            axis,
            device,
            x=x,
            dy_type=DTYPES[dy_type],
            scale_type=DTYPES[scale_type or x_type],
            dx_type=DTYPES[dx_type or x_type],
            param_type=DTYPES[param_type or x_type],
        )
        assert actual[0].dtype == DTYPES[dx_type or x_type]
        assert actual[1].dtype == actual[2].dtype == DTYPES[param_type or x_type]
        # rstd is float32 for any x but float64, whatever type the gradient is asked in.
        single = [a.astype(np.float32) if a.dtype == np.float64 else a for a in actual]
        check(actual if x_type == "float64" else single, expected)


@pytest.mark.parametrize("mean", [1e4, 1e6])
@pytest.mark.parametrize(
    "shape,axis", [((4, 4096), [-1]), ((2, 100000), [-1]), ((2, 4000, 3), [1])]
)
def test_a_large_mean_costs_no_precision(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int], mean: float
) -> None:
    """Although the stored mean is float32, which is off by up to 0.03 at 1e6."""
    x = random(35, shape, DTYPES["float32"], mean=mean, std=1.0)
    check(*layer(ops, shape, axis, device, x=x))


@pytest.mark.parametrize("shape,axis", [((1000, 3), [-1]), ((4000, 40), [-1]), ((300, 1000), [-1])])
def test_many_rows(ops: Any, device: str, shape: tuple[int, ...], axis: list[int]) -> None:
    check(*layer(ops, shape, axis, device))


@pytest.mark.parametrize("shape,axis", [((6, 100), [-1]), ((3, 40000), [-1]), ((3, 50, 4), [1])])
def test_nan_stays_in_its_row_and_its_parameter(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int]
) -> None:
    x = random(36, shape, DTYPES["float32"])
    dy = random(37, shape, DTYPES["float32"])
    mean, rstd = statistics(x, axis)
    at = (1, 17) if len(shape) == 2 else (1, 17, 2)
    dy[at] = np.nan
    dx, dscale, doffset = gradient(ops, "LayerNorm", dy, x, None, mean, rstd, device, axis=axis)
    spoilt = np.zeros(shape, bool)
    spoilt[(1, slice(None)) if len(shape) == 2 else (1, slice(None), 2)] = True
    np.testing.assert_array_equal(np.isnan(dx), spoilt)
    expected = np.arange(shape[axis[0]]) == 17
    np.testing.assert_array_equal(np.isnan(dscale), expected)
    np.testing.assert_array_equal(np.isnan(doffset), expected)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("axis", [[-1], [1]])
def test_empty_tensors(ops: Any, device: str, shape: tuple[int, ...], axis: list[int]) -> None:
    x = np.zeros(shape, np.float32)
    stat = np.zeros([n for i, n in enumerate(shape) if i != axis[0] % len(shape)], np.float32)
    dx, dscale, doffset = gradient(ops, "LayerNorm", x, x, None, stat, stat, device, axis=axis)
    assert dx.shape == shape
    np.testing.assert_array_equal(dscale, np.zeros(shape[axis[0]]))
    np.testing.assert_array_equal(doffset, np.zeros(shape[axis[0]]))


@pytest.mark.parametrize(
    "shape,axis",
    [((5, 200), [-1]), ((2, 40000), [-1]), ((2, 30, 7), [1]), ((2, 3, 4, 5), [0, 2])],
)
def test_scale_only(ops: Any, device: str, shape: tuple[int, ...], axis: list[int]) -> None:
    x = random(38, shape, DTYPES["float32"])
    dy = random(39, shape, DTYPES["float32"])
    gamma = random(40, (math.prod(shape[a] for a in axis),), DTYPES["float32"])
    mean, rstd = statistics(x, axis)
    actual = gradient(
        ops, "LayerNorm", dy, x, gamma, mean, rstd, device, axis=axis, subtract_mean=False
    )
    check(actual, expect(dy, x, gamma, axis, axis, EPSILON, "scale_only"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape,axis", LAYER_SHAPES)
def test_rms_norm(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int], dtype: str
) -> None:
    x = random(41, shape, DTYPES[dtype])
    dy = random(42, shape, DTYPES[dtype])
    gamma = random(43, (math.prod(shape[a] for a in axis),), DTYPES["float32"])
    _, rstd = statistics(x, axis, "rms")
    actual = gradient(ops, "RMSNorm", dy, x, gamma, None, rstd, device, axis=axis)
    check(actual, expect(dy, x, gamma, axis, axis, EPSILON, "rms"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape,groups", [*GROUP_SHAPES, ((3, 40000, 6), [3, 6]), ((2, 7, 7, 1500), [3])]
)
def test_group_norm(
    ops: Any,
    device: str,
    shape: tuple[int, ...],
    groups: list[int],
    dtype: str,
    channels_last: bool,
) -> None:
    x = random(44, shape, DTYPES[dtype], mean=3.0)
    dy = random(45, shape, DTYPES[dtype])
    if not channels_last:
        x, dy = (np.ascontiguousarray(np.moveaxis(a, -1, 1)) for a in (x, dy))
    gamma = random(46, (shape[-1],), DTYPES["float32"])
    for count in groups:
        view, reduced, params = formulas.grouped(x, count, channels_last)
        mean, rstd = (s.reshape(shape[0], count) for s in statistics(view, reduced))
        data_format = "N...C" if channels_last else "NC..."
        options = {"data_format": data_format}
        actual = gradient(
            ops, "GroupNorm", dy, x, gamma, mean, rstd, device, groups=count, **options
        )
        gradients, sizes = expect(dy.reshape(view.shape), view, gamma, reduced, params, EPSILON)
        shapes = (x.shape, (-1,), (-1,))
        expected = (
            tuple(g.reshape(s) for g, s in zip(gradients, shapes, strict=True)),
            tuple(g.reshape(s) for g, s in zip(sizes, shapes, strict=True)),
        )
        check(actual, expected)
        if count == shape[-1]:
            check(
                gradient(ops, "InstanceNorm", dy, x, gamma, mean, rstd, device, **options), expected
            )


@pytest.mark.parametrize("shape,axis", [((640, 100), [-1]), ((3, 99999), [-1]), ((3, 500, 6), [1])])
def test_the_same_bits_every_time(
    ops: Any, device: str, shape: tuple[int, ...], axis: list[int]
) -> None:
    first, _ = layer(ops, shape, axis, device)
    for _ in range(5):
        again, _ = layer(ops, shape, axis, device)
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype,units", [("float64", 2.0**30), ("float32", 16)])
@pytest.mark.parametrize("kind,shape,width,attributes", [
    ("LayerNorm", (3, 7), 7, {"axis": [-1]}),
    ("LayerNorm", (3, 4, 5), 4, {"axis": [1]}),
    ("LayerNorm", (2, 4, 5), 20, {"axis": [1, 2]}),
    ("LayerNorm", (3, 7), 7, {"axis": [-1], "subtract_mean": False}),
    ("RMSNorm", (3, 7), 7, {"axis": [-1]}),
    ("InstanceNorm", (2, 5, 4), 4, {"data_format": "N...C"}),
    ("InstanceNorm", (2, 4, 5), 4, {"data_format": "NC..."}),
    ("GroupNorm", (2, 5, 6), 6, {"data_format": "N...C", "groups": 2}),
    ("GroupNorm", (2, 6, 5), 6, {"data_format": "NC...", "groups": 3}),
])  # fmt: skip
def test_gradient_agrees_with_central_differences(
    ops: Any,
    device: str,
    kind: str,
    shape: tuple[int, ...],
    width: int,
    attributes: dict[str, Any],
    dtype: str,
    units: float,
) -> None:
    """Of the op's own forward in float64: the two ops fit together.

    The differences themselves are right to 2^-22 of the largest gradient: 2^30 units of float64.
    """
    x, dy = (random(seed, shape, DTYPES[dtype]) for seed in (47, 49))
    gamma, beta = (random(seed, (width,), DTYPES[dtype]) for seed in (48, 50))

    def loss(*point: np.ndarray) -> float:
        y = forward(ops, kind, *point, device=device, **attributes)[0]
        return float(np.sum(np.float64(dy) * y))

    _, *mean, rstd = forward(ops, kind, x, gamma, beta, device, **attributes)
    actual = gradient(
        ops, kind, dy, x, gamma, *(mean or [None]), rstd, device,
        param_type=DTYPES[dtype], **attributes,
    )  # fmt: skip
    expected = oracle.central_differences(loss, [x, gamma, beta])
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == dtype
        bound = units * np.finfo(dtype).eps * np.abs(e).max()
        np.testing.assert_allclose(a.reshape(e.shape), e, rtol=0, atol=bound)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"dy": np.zeros((2, 4), np.float32)}, r"dy has shape \[2,4\], expected \[2,3\]"),
        ({"scale": np.zeros(2, np.float32)}, r"scale has shape \[2\], expected 3 elements"),
        ({"mean": np.zeros(3, np.float32)}, r"mean has shape \[3\], expected \[2\]"),
        ({"rstd": np.zeros((2, 1), np.float32)}, r"rstd has shape \[2,1\], expected \[2\]"),
    ],
)
def test_sizes_that_do_not_fit(
    ops: Any, device: str, change: dict[str, np.ndarray], message: str
) -> None:
    arguments: dict[str, Any] = {
        "dy": np.zeros((2, 3), np.float32),
        "x": np.zeros((2, 3), np.float32),
        "scale": None,
        "mean": np.zeros(2, np.float32),
        "rstd": np.zeros(2, np.float32),
        **change,
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        gradient(ops, "LayerNorm", device=device, **arguments)
