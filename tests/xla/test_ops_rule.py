"""Which normalizations are left to XLA on a GPU: the table's answers to cases that it measured."""

from __future__ import annotations

from typing import Any

import pytest

from nv_norms_rewriter import _xla_rule


def left(kind: str, shape: Any, axes: tuple[int, ...], **changed: Any) -> str:
    given: dict[str, Any] = {
        "gradient": "fused",
        "dtype": "float32",
        "producer": "MatMul",
        "readers": ("MatMul", "AddV2"),
        **changed,
    }
    return _xla_rule.why_left(
        _xla_rule.Norm(kind=kind, shape=shape, axes=axes, device_type="GPU", **given)
    )


GELU = {"readers": ("Mul", "Erf")}
FORWARD = {"gradient": ""}
HALF = {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    "kind,shape,axes,changed",
    [
        ("layer_norm", (16384, 768), (-1,), {}),
        ("layer_norm", (None, 768), (-1,), HALF),
        ("layer_norm", (None, 512, 768), (2,), HALF | GELU),
        ("layer_norm", (16384, 768), (-1,), HALF | FORWARD),
        ("layer_norm", (10, 10_000_000), (-1,), HALF),
        ("rms_norm", (8192, 4096), (1,), {"dtype": "float16"}),
        ("layer_norm", (8, 16, 16, 64), (-3, -2, -1), {}),
        ("instance_norm", (2, 96, 96, 96, 32), (-4, -3, -2), HALF),
        ("instance_norm", (2, 12, 12, 12, 256), (1, 2, 3), HALF | GELU),
        ("instance_norm", (None, None, None, 64), (1, 2), FORWARD),
    ],
)
def test_what_was_measured_to_pay_is_fused(
    kind: str, shape: Any, axes: tuple[int, ...], changed: dict[str, Any]
) -> None:
    assert left(kind, shape, axes, **changed) == ""


@pytest.mark.parametrize(
    "kind,shape,axes,changed,why",
    [
        ("layer_norm", (16384, 768), (-1,), HALF | FORWARD | GELU, "elementwise"),
        ("layer_norm", (1_000_000, 100), (-1,), HALF, "not a multiple of 8"),
        ("layer_norm", (100, 1_000_000), (-1,), {}, "50,000"),
        ("layer_norm", (2, 300, 9), (1,), {}, "not measured"),
        ("layer_norm", None, (-1,), {}, "not measured"),
        ("layer_norm", (16384, 768), (-1,), {"gradient": "stock"}, "gradient stays"),
        ("layer_norm", (16384, 768), (-1,), {"dtype": "float64"}, "float64"),
        ("group_norm", (2, 56, 56, 256), (1, 2), {}, "not measured"),
        ("instance_norm", (2, 32, 64, 64), (2, 3), {}, "not measured"),
        ("instance_norm", (2, 96, 96, 96, 32), (1, 2, 3), HALF | GELU, "elementwise"),
        ("instance_norm", (2, 24, 24, 24, 128), (1, 2, 3), HALF, "ten million"),
    ],
)
def test_the_others_are_left_with_a_reason(
    kind: str, shape: Any, axes: tuple[int, ...], changed: dict[str, Any], why: str
) -> None:
    assert why in left(kind, shape, axes, **changed)
