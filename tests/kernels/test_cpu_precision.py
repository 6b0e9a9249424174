"""The CPU kernels on inputs that cost precision, and on NaN, against float64 from the formulas.

Needs what test_cpu.py needs, and is run with it by tests/kernels/cpu_targets.sh.
"""

from __future__ import annotations

import numpy as np
import pytest

test_cpu = pytest.importorskip("test_cpu")
cpu_library, formulas = test_cpu.cpu_library, test_cpu.formulas
check, check_inputs = test_cpu.check, test_cpu.check_inputs
draw, views = test_cpu.draw, test_cpu.views
BF16, F16, F32, F64 = test_cpu.BF16, test_cpu.F16, test_cpu.F32, test_cpu.F64
CASES, EPSILON = test_cpu.CASES, test_cpu.EPSILON


def hard_rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    shape = (16, 4097)
    outlier = rng.standard_normal(shape)
    outlier[:, 1234] = 1e6
    first = rng.standard_normal(shape)
    first[:, 0] = -1e6
    return {
        "mean 1e4": rng.normal(1e4, 1, shape),
        "mean -1e6": rng.normal(-1e6, 1, shape),
        "constant": np.full(shape, 3.3),
        "outlier": outlier,
        "outlier first": first,
        "tiny": rng.standard_normal(shape) * 1e-39,
        "huge": rng.standard_normal(shape) * 1e15,
    }


@pytest.mark.parametrize("name", hard_rows())
@pytest.mark.parametrize(
    "layout", ["rows", "rows of 3", "rows of 17", "columns", "groups", "strips"]
)
@pytest.mark.parametrize("slope", [1.0, 0.01, "silu"])
def test_hard_inputs(name: str, layout: str, slope: float, rng: np.random.Generator) -> None:
    x = hard_rows()[name].astype(F32)
    case: dict[str, object] = {"axis": [-1]}
    if layout.startswith("rows of "):
        x = np.resize(x, (x.size // int(layout[8:]), int(layout[8:])))
    elif layout == "strips":
        case, x = {"axis": [1]}, np.resize(x, (2, 257, 1024))
    elif layout == "columns":
        case = {"groups": -1, "channels_last": True}
        x = np.ascontiguousarray(x.T)[np.newaxis]
    elif layout == "groups":
        case = {"groups": 2, "channels_last": True}
        x = np.ascontiguousarray(x.reshape(4, 4, 4097).transpose(0, 2, 1))
    check((case, x.shape), rng, (F32, F32, F32), x=x, negative_slope=slope)


def hard_halves() -> dict[str, np.ndarray]:
    """For kernels that guess a row's mean by its first numbers."""
    rng = np.random.default_rng(12)
    shape = (16, 4097)
    begin, one, steps = (rng.standard_normal(shape) for _ in range(3))
    begin[:, :70] -= 1000
    one[:, 5] = 3e4
    steps += 100 * (np.arange(4097) // 1500)
    return {
        "mean 1000": rng.normal(1000, 1, shape),
        "constant": np.full(shape, 3.3),
        "nearly constant": np.where(np.arange(4097) == 2000, 3.4, 3.3) * np.ones((16, 1)),
        "other numbers first": begin,
        "outlier": one,
        "steps": steps,
        "tiny": rng.standard_normal(shape) * 1e-7,
    }


@pytest.mark.parametrize("name", hard_halves())
@pytest.mark.parametrize("columns", [4097, 300, 129])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_hard_inputs_of_16_bits(
    name: str, columns: int, dtype: np.dtype, rng: np.random.Generator
) -> None:
    x = hard_halves()[name].astype(dtype)
    x = np.ascontiguousarray(x[:, :columns])
    check(({"axis": [-1]}, x.shape), rng, (dtype, dtype, F32), x=x)


@pytest.mark.parametrize("far", [0, -300, -30000])
@pytest.mark.parametrize("columns", [768, 2048, 4096])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_what_comes_first_costs_no_precision(
    dtype: np.dtype, columns: int, far: float, rng: np.random.Generator
) -> None:
    """A guess by the first 16 numbers alone is off by up to 7e-6 here."""
    x = rng.standard_normal((64, columns))
    x[:, :16] += far
    x = x.astype(dtype)
    mean, rstd = np.empty(64, F32), np.empty(64, F32)
    cpu_library.forward(x, None, None, np.empty_like(x), mean, rstd, axis=[-1], epsilon=EPSILON)()
    exact = x.astype(F64)
    np.testing.assert_allclose(rstd, 1 / np.sqrt(exact.var(1) + EPSILON), rtol=4e-7)
    np.testing.assert_allclose(mean, exact.mean(1), rtol=0, atol=1e-7 * np.abs(exact).max())


@pytest.mark.parametrize("columns", [7, 100, 333, 4097])
def test_subnormal_numbers_of_bfloat16_are_kept(columns: int, rng: np.random.Generator) -> None:
    case = ({"axis": [-1]}, (32, columns))
    inputs = draw(case, rng, (BF16, BF16, F32))
    inputs.gamma[...] *= 1e-39
    inputs.beta[...] *= 1e-39
    inputs.dy[::2] = (inputs.dy[::2].astype(F32) * 1e-39).astype(BF16)
    inputs.gamma[::2] = 1
    y = check_inputs(case, inputs, F32)["y"].astype(F64)
    assert (np.abs(y[y != 0]).min() < 1e-38) and (y[:, 1::2] != 0).mean() > 0.9


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_stays_in_its_statistic(value: float, rng: np.random.Generator) -> None:
    for case in CASES[4:]:
        settings, shape = case
        split, reduced, _ = views(case)
        stats = [n for a, n in enumerate(split) if a not in reduced]
        x = rng.standard_normal(shape).astype(F32)
        clean = x.copy()
        x.reshape(-1)[x.size // 2] = value
        outputs = []
        for source in (x, clean):
            y = np.empty_like(x)
            mean, rstd = np.empty(stats, F32), np.empty(stats, F32)
            cpu_library.forward(source, None, None, y, mean, rstd, **settings)()
            outputs.append(y)
        bad = np.isnan(outputs[0].reshape(split)).any(tuple(reduced))
        assert bad.sum() == 1, case
        same = np.isnan(outputs[0]) | (outputs[0] == outputs[1])
        hit = np.broadcast_to(np.expand_dims(bad, tuple(reduced)), split).reshape(shape)
        assert (same | hit).all(), case


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_gradient_stays_infinite_in_sums(
    value: float, rng: np.random.Generator
) -> None:
    """With mixed_float16 dy overflows. Its sums are not NaN, which it would be less itself."""
    for case in CASES:
        split, reduced, spanned = views(case)
        inputs = draw(case, rng, (F32, F32, F32))
        inputs.dy.reshape(-1)[inputs.dy.size // 2] = value
        got = test_cpu.run(case, inputs)
        arrays = (inputs.dy.reshape(split), inputs.x.reshape(split), inputs.gamma)
        with np.errstate(invalid="ignore"):
            _, dgamma, dbeta = formulas.norm_gradient(*arrays, reduced, spanned, EPSILON)
        for name, expected in (("dgamma", dgamma), ("dbeta", dbeta)):
            special = ~np.isfinite(expected)
            assert special.sum() == 1, case
            np.testing.assert_array_equal(got[name][special], expected[special], f"{case} {name}")
            assert np.isfinite(got[name][~special]).all(), case
