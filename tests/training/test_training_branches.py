"""Norms in branches behind one gradient: each is told from what the others do with it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from training_steps import check, normal, step_of

import oracle

ROWS, SIZE, GROUPS = 4, 24, 4


def _layers() -> dict[str, keras.Layer]:
    layers = {
        "beside": keras.layers.LayerNormalization(),
        "rms beside": keras.layers.RMSNormalization(),
        "first": keras.layers.LayerNormalization(),
        "second": keras.layers.RMSNormalization(),
        "third": keras.layers.GroupNormalization(GROUPS),
    }
    for layer in layers.values():
        layer.build((None, SIZE))
    return layers


@pytest.mark.parametrize("rms_beside", [False, True])
def test_three_norms_in_a_row_beside_one(rng, rms_beside: bool) -> None:
    """A dozen restarts for each of the three, of which the one beside them has no need."""
    x, dy = normal(rng, ROWS, SIZE), normal(rng, ROWS, SIZE)
    weights = normal(rng, SIZE, SIZE)
    layers = _layers()

    def function(x):
        y = layers["third"](layers["second"](layers["first"](x @ weights))) + layers["beside"](x)
        return y + layers["rms beside"](x) if rms_beside else y

    def formula(x) -> np.ndarray:
        x = np.float64(x)
        y = oracle.rms_norm(oracle.layer_norm(x @ np.float64(weights)).y).y
        y = oracle.group_norm(y, groups=GROUPS).y + oracle.layer_norm(x).y
        return y + oracle.rms_norm(x).y if rms_beside else y

    (dx,) = oracle.central_differences(lambda x: float(np.sum(formula(x) * dy)), [x])
    kinds = {"layer_norm": 2, "rms_norm": 1 + rms_beside, "group_norm": 1}
    check(step_of(function, [], x, dy, "static"), [x, dy], [formula(x), dx], kinds, kinds)
