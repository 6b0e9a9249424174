"""After the rewrite nothing of a norm's size is computed or kept but x, dy, y and dx."""

from __future__ import annotations

from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_models import CASES, Case
from training_norms import ALL, FOUR, GROUP, INSTANCE, LAYER, RMS, Norm
from training_steps import normal, spec
from training_traces import trace

import nv_norms_rewriter


def _step(norm: Norm, layers, known: str, x: np.ndarray):
    """Returns a step of as many norms as layers, a tanh after each."""
    layers, variables = zip(*layers, strict=True)

    @tf.function(input_signature=[spec(x, known), spec(x, known)])
    def step(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for layer in layers:
                y = tf.tanh(layer(y))
        return y, tape.gradient(y, [x, *sum(map(list, variables), [])], dy)

    return step


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "norm,known,policy",
    [
        *(pytest.param(norm, "batch", "float32", id=f"{norm.name}-batch") for norm in ALL),
        *(pytest.param(norm, "static", "float32", id=f"{norm.name}-static") for norm in FOUR),
        *(
            pytest.param(norm, known, "mixed_float16", id=f"{norm.name}-{known}-mixed")
            for norm in FOUR
            for known in ("batch", "static")
        ),
    ],
)
def test_a_norm_computes_only_y_and_dx_in_full(rng, norm: Norm, known: str, policy: str) -> None:
    dtype = np.float32 if policy == "float32" else np.float16
    x, dy = (normal(rng, *norm.shape).astype(dtype) for _ in range(2))
    layers = [norm.build(norm.parameters(rng), policy)]
    with nv_norms_rewriter.disabled():
        stock = trace(_step(norm, layers, known, x), [x, dy]).computed(x.size)
    fused = trace(_step(norm, layers, known, x), [x, dy]).computed(x.size)
    kind = "".join(part.capitalize() for part in norm.kind.split("_")).replace("Rms", "RMS")
    expected = {f"Fused{kind}": 1, f"Fused{kind}Grad": 1, "Tanh": 1, "TanhGrad": 1}
    assert Counter(tensor.op for tensor in fused) == expected, fused
    assert len(stock) > len(fused)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_norms_of_a_model_compute_only_y_and_dx_in_full(rng, case: Case, policy: str) -> None:
    """Whatever stands in the scope of a norm has fewer elements, or is the fused op's."""
    seed = int(rng.integers(2**31))
    keras.utils.set_random_seed(seed)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model, shapes = case.make(0)
    finally:
        keras.config.set_dtype_policy(before)
    inputs, target = case.data(model, shapes, seed)
    weights = [variable.value for variable in model.trainable_variables]

    def make():
        @tf.function(input_signature=[spec(array, "static") for array in (*inputs, target)])
        def step(*arrays):
            with tf.GradientTape() as tape:
                output = model(arrays[0] if len(inputs) == 1 else list(arrays[:-1]), training=True)
                loss = tf.reduce_mean(tf.square(output - arrays[-1]))
            return loss, tape.gradient(loss, weights)

        return step

    sizes = [
        int(np.prod([shapes[0][0], *layer.output.shape[1:]]))
        for layer in model.layers
        if "normalization" in layer.name
    ]
    assert len(sizes) == sum(case.norms[0].values())
    names = {layer.name for layer in model.layers if "normalization" in layer.name}

    def of_norms(run):
        return [
            tensor
            for tensor in run.computed(min(sizes))
            if names & {part.rsplit("_", 1)[0] for part in tensor.node.split("/")}
            | names & set(tensor.node.split("/"))
        ]

    with nv_norms_rewriter.disabled():
        stock = of_norms(trace(make(), [*inputs, target]))
    fused = of_norms(trace(make(), [*inputs, target]))
    assert len(stock) > 3 * len(sizes)
    ours = {
        f"Fused{kind}Norm{grad}" for kind in ("Layer", "Group", "Instance") for grad in ("", "Grad")
    }
    if policy == "float32" and tf.config.list_physical_devices("GPU"):
        ours.add("Transpose")  # of the layout pass, to or from a convolution; tests/layout counts
    assert {tensor.op for tensor in fused} <= ours, fused


# Slow, though quick: how much lives at once depends on which of two independent ops TensorFlow's
# threads run first (5.5 times x on a quiet machine, 6.5 were seen on a busy one).
@pytest.mark.slow
@pytest.mark.parametrize(
    "norm,policy,share",
    [
        (LAYER, "float32", 0.75),
        (RMS, "float32", 0.75),
        (GROUP, "float32", 0.95),
        (INSTANCE, "float32", 0.95),
        *((norm, "mixed_float16", 0.5) for norm in FOUR),
    ],
    ids=lambda value: getattr(value, "name", value if isinstance(value, str) else ""),
)
def test_a_step_holds_less_at_its_peak(rng, norm: Norm, policy: str, share: float) -> None:
    """Four norms, a tanh after each. Fused, the step keeps what the tanhs gave, which the next norm
    reads as x, and works on one tensor more: 5 in all. Stock keeps rstd * gamma (layer norm) or
    xhat (RMS norm) of each norm beside them, 4 more, and all stock norms need 1 to 3
    more to work on.

    Measured, in sizes of x: 10.8 and 5.5 (layer norm), 11.3 and 5.3 (RMS norm), 7.5 and 5.2 (group
    norm), 7.7 and 5.4 (instance norm). With x in half, of which stock makes copies in float32:
    26.5 and 6.0, 25.7 and 5.5, 18.2 and 5.4, 18.7 and 5.8.
    """
    shape = tuple(8 * n if i == 0 else n for i, n in enumerate(norm.shape))
    dtype = np.float32 if policy == "float32" else np.float16
    x, dy = (normal(rng, *shape).astype(dtype) for _ in range(2))
    layers = [norm.build(norm.parameters(rng), policy) for _ in range(4)]
    with nv_norms_rewriter.disabled():
        stock = trace(_step(norm, layers, "static", x), [x, dy]).peak_bytes
    fused = trace(_step(norm, layers, "static", x), [x, dy]).peak_bytes
    print(f"stock {stock / x.nbytes:.2f}, fused {fused / x.nbytes:.2f} times x")
    assert fused <= share * stock
