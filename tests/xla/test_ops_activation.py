"""A leaky relu inside instance and group norm, as XLA compiles it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import formulas
import numpy as np
import pytest
import tensorflow as tf
from channel_norms import (
    EPSILON,
    FEW,
    NORMS,
    TAPES,
    Norm,
    check_forward,
    check_gradient,
    params_of,
    tape_inputs,
)
from saved import elsewhere, ops_in_saved_model
from support import DTYPES, forward, gradient, random
from test_activation import SLOPE, SLOPES

from nv_norms_rewriter import _saving

FLOAT32 = DTYPES["float32"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("norm", [n for n in NORMS if np.prod(n.shape) < 1e5], ids=str)
def test_forward_and_gradient(compiled: Any, device: str, norm: Norm, slope: float) -> None:
    x = random(1, norm.shape, FLOAT32)
    given = params_of(norm, FLOAT32, True, True)
    check_forward(compiled, norm, slope, device, x, *given)
    check_gradient(compiled, norm, slope, device, x, *given)


@pytest.mark.parametrize("scaled,shifted", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 1)])
def test_absent_parameters_and_outputs(
    compiled: Any, device: str, scaled: bool, shifted: bool, wanted: tuple[int, int, int]
) -> None:
    x = random(1, FEW[0].shape, FLOAT32)
    given = params_of(FEW[0], FLOAT32, scaled, shifted)
    check_forward(compiled, FEW[0], SLOPE, device, x, *given)
    check_gradient(compiled, FEW[0], SLOPE, device, x, *given, wanted=wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(compiled: Any, device: str, dtype: str) -> None:
    x = random(1, FEW[2].shape, DTYPES[dtype])
    given = params_of(FEW[2], DTYPES[dtype], True, True)
    check_forward(compiled, FEW[2], SLOPE, device, x, *given)
    check_gradient(compiled, FEW[2], -0.5, device, x, *given, param_type=DTYPES[dtype])


@pytest.mark.parametrize("norm", FEW, ids=str)
def test_the_same_bits_as_outside_of_xla(ops: Any, compiled: Any, device: str, norm: Norm) -> None:
    x, dy = random(1, norm.shape, FLOAT32), random(4, norm.shape, FLOAT32)
    scale, offset = params_of(norm, FLOAT32, True, True)
    rest = {"negative_slope": SLOPE, **norm.attributes}
    plain = [forward(o, norm.kind, x, scale, offset, device, **rest) for o in (ops, compiled)]
    gradients = [
        gradient(o, norm.kind, dy, x, scale, *plain[0][1:], device, offset=offset, **rest)
        for o in (ops, compiled)
    ]
    for outside, inside in (plain, gradients):
        for a, b in zip(outside, inside, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2, 0, 3), (2, 3, 0)])
def test_empty_tensors(compiled: Any, device: str, shape: tuple[int, ...]) -> None:
    zeros, channels = np.zeros(shape, np.float32), np.ones(shape[-1], np.float32)
    rest = {"negative_slope": 0.0}
    y, mean, rstd = forward(compiled, "InstanceNorm", zeros, channels, channels, device, **rest)
    assert y.shape == shape
    dx, dscale, doffset = gradient(
        compiled, "InstanceNorm", zeros, zeros, channels, mean, rstd, device, offset=channels,
        **rest,
    )  # fmt: skip
    assert dx.shape == shape
    np.testing.assert_array_equal(dscale, np.zeros(shape[-1]))
    np.testing.assert_array_equal(doffset, np.zeros(shape[-1]))


MASK = np.array([True, False, True, True])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", ["tape inside", "tape outside", "all but some masked rows"])
@pytest.mark.parametrize("slope", [0.0, SLOPE, "silu"])
@pytest.mark.parametrize("norm", TAPES, ids=str)
def test_tape(ops: Any, device: str, norm: Norm, slope: formulas.Slope, where: str) -> None:
    """The registered gradients; masked: in a batch of which XLA knows only a bound."""
    norm = norm._replace(shape=(4, *norm.shape[1:]))
    arrays, weight = tape_inputs(norm)
    masked = "masked" in where

    def loss(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        w = tf.constant(weight)
        if masked:
            x, w = tf.boolean_mask(x, mask), tf.boolean_mask(w, mask)
            if norm.per_sample:
                gamma, beta = tf.boolean_mask(gamma, mask), tf.boolean_mask(beta, mask)
        y = norm.call(ops, x, [gamma], [beta], **formulas.attributes_of(slope))
        return tf.reduce_sum(y * w), y

    def both(function: Any, inputs: list[tf.Tensor]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            value, y = function(*inputs, tf.constant(MASK))
        return [y, *tape.gradient(value, inputs)]

    with tf.device(device):
        inputs = [tf.constant(v) for v in arrays]
        if where == "tape outside":
            actual = both(tf.function(loss, jit_compile=True, autograph=False), inputs)
        else:
            actual = tf.function(both, jit_compile=True, autograph=False)(loss, inputs)
    y, dx, dscale, doffset = (tf.convert_to_tensor(a).numpy() for a in actual)
    rows = MASK if masked else np.ones(4, bool)
    np.testing.assert_array_equal(dx[~rows], 0)
    view, reduced, params = norm.view(arrays[0])
    view, weights = view[rows], weight.reshape(view.shape)[rows]
    of_rows = rows if norm.per_sample else slice(None)
    given = [value[of_rows] for value in arrays[1:]]
    t = formulas.norm(view, *given, reduced, params, EPSILON)[0]
    formulas.assert_close(y.reshape(view.shape), formulas.activated(t, slope), 8, "y")
    arguments = (view, given[0], reduced, params, EPSILON)
    expected = formulas.norm_gradient(formulas.passed(weights, t, slope), *arguments)
    t_sizes = formulas.t_sizes(view, *given, reduced, params, EPSILON)
    passed_size = formulas.passed_size(weights, t, slope, t_sizes)
    sizes = formulas.gradient_sizes(passed_size, *arguments)
    gradients = (dx[rows], dscale[of_rows], doffset[of_rows])
    for a, e, size in zip(gradients, expected, sizes, strict=True):
        formulas.assert_close(a.reshape(e.shape), e, 4, size=size)


@pytest.mark.parametrize("masked", [False, True])
def test_infinite_and_nan(ops: Any, device: str, masked: bool) -> None:
    """Of -inf a relu makes 0, which 0 * -inf is not; NaN stays."""
    norm = TAPES[0]._replace(shape=(4, 4, 3, 5))
    offset = np.array([-np.inf, np.nan, np.inf, 1, 2], np.float32)
    for slope, below in [(0.0, 0.0), (SLOPE, -np.inf), (-0.5, np.inf)]:

        @tf.function(jit_compile=True, autograph=False)
        def run(x: tf.Tensor, mask: tf.Tensor, slope: float = slope) -> tf.Tensor:
            x = tf.boolean_mask(x, mask) if masked else x
            return norm.call(ops, x, [], [tf.constant(offset)], negative_slope=slope)

        with tf.device(device):
            y = run(tf.constant(random(1, norm.shape, FLOAT32)), tf.constant(MASK)).numpy()
        assert (y[..., 0] == below).all() and (y[..., 2] == np.inf).all()
        assert np.isnan(y[..., 1]).all() and np.isfinite(y[..., 3:]).all()


@pytest.mark.parametrize("slope", [np.inf, np.nan])
def test_a_slope_that_is_no_number_is_an_error(compiled: Any, slope: float) -> None:
    x, stat = np.ones((2, 3, 4), np.float32), np.ones((2, 4), np.float32)
    message = f"negative_slope is {slope}, expected a finite number"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        forward(compiled, "InstanceNorm", x, negative_slope=slope)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        gradient(compiled, "InstanceNorm", x, x, None, stat, stat, negative_slope=slope)


def test_an_offset_that_does_not_fit(ops: Any) -> None:
    @tf.function(
        jit_compile=True,
        autograph=False,
        input_signature=[{name: tf.TensorSpec(None) for name in ("dy", "x", "offset")}],
    )
    def run(given: dict[str, tf.Tensor]) -> Any:
        stat = tf.ones((2, 8))
        return ops.fused_instance_norm_grad(
            dy=given["dy"], x=given["x"], scale=[], offset=[given["offset"]], mean=stat,
            rstd=stat, dx_type=tf.float32, param_type=tf.float32, num_dx=1, num_dscale=1,
            num_doffset=1, negative_slope=0.5,
        )  # fmt: skip

    shapes = {"dy": (2, 3, 8), "x": (2, 3, 8), "offset": (7,)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"offset has shape \[7\], expected 8"):
        run({name: tf.ones(shape) for name, shape in shapes.items()})


class Saved(tf.Module):
    """A norm whose ops are marked as a trace marks them, and its gradients."""

    def __init__(self, ops: Any, norm: Norm, slope: float) -> None:
        self.ops, self.norm, self.slope = ops, norm, slope
        self.arrays, self.weight = tape_inputs(norm)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)], autograph=False)
    def compute(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        params = [tf.constant(v) for v in self.arrays[1:]]
        with tf.GradientTape() as tape:
            tape.watch([x, *params])
            y = self.norm.call(self.ops, x, params[:1], params[1:], negative_slope=self.slope)
            loss = tf.reduce_sum(y * self.weight)
        dx, dgamma, dbeta = tape.gradient(loss, [x, *params])
        made = [op for op in y.graph.get_operations() if op.type.startswith("Fused")]
        assert len(made) == 2
        for op in made:
            op._set_attr(_saving.MARK, tf.compat.v1.AttrValue(b=True))
        return {"y": y, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}


@pytest.mark.parametrize(
    "norm,slope", [(TAPES[0], 0.0), (TAPES[3], SLOPE), (TAPES[5], 0.0)], ids=str
)
def test_a_saved_model_loads_without_the_package(
    ops: Any, tmp_path: Path, norm: Norm, slope: float
) -> None:
    """As TensorFlow's own ops, in a process of its own, where x is of unknown rank."""
    module = Saved(ops, norm, slope)
    concrete = module.compute.get_concrete_function()
    here = concrete(tf.constant(module.arrays[0]))
    tf.saved_model.save(module, str(tmp_path), concrete)
    saved = ops_in_saved_model(tmp_path)
    assert not any(op.startswith("Fused") for op in saved)
    assert {"Relu", "ReluGrad"} <= saved if slope == 0 else {"LeakyRelu", "LeakyReluGrad"} <= saved
    for name, value in elsewhere(tmp_path, module.arrays[0]).items():
        expected = here[name].numpy()
        np.testing.assert_allclose(value, expected, 1e-5, 1e-5 * np.abs(expected).max())
