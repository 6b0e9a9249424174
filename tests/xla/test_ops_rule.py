"""Which normalizations are left to XLA: what the nearest measured case says."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest
from traced import ROOT

from nv_norms_rewriter import _xla_rule

# Near enough to what was measured to read, far enough from it to be told apart.
V48, V12 = 2 * 48**3 * 64, 1000 * 12**2 * 64
TABLE = (
    ("layer_norm", "rows", 4, True, "", 768, 768, 16384 * 768, 1.65, "16384 x 768"),
    ("layer_norm", "rows", 4, True, "residual", 768, 768, 16384 * 768, 1.35, "16384 x 768"),
    ("layer_norm", "rows", 4, True, "activation", 768, 768, 16384 * 768, 0.9, "16384 x 768"),
    ("layer_norm", "rows", 4, True, "parts", 768, 768, 16384 * 768, 1.2, "16384 x 768"),
    ("layer_norm", "rows", 4, True, "moved", 768, 768, 16384 * 768, 1.21, "16384 x 768"),
    ("layer_norm", "rows", 4, True, "squeezed", 768, 768, 16384 * 768, 0.92, "16384 x 768"),
    ("layer_norm", "rows", 4, True, "skip", 768, 768, 16384 * 768, 0.93, "16384 x 768"),
    ("layer_norm", "rows", 4, True, "", 8192, 8192, 16384 * 8192, 1.04, "16384 x 8192"),
    ("layer_norm", "rows", 2, True, "", 768, 768, 16384 * 768, 1.55, "16384 x 768"),
    ("layer_norm", "rows", 2, True, "", 100, 100, 10**8, 0.99, "1000000 x 100"),
    ("instance_norm", "channels last", 4, False, "", 32, 96**3, 2 * 96**3 * 32, 1.18, "96"),
    ("instance_norm", "channels last", 4, False, "", 256, 24**3, 2 * 24**3 * 256, 0.88, "24"),
    ("instance_norm", "channels last", 2, False, "", 64, 48**3, V48, 1.02, "48"),
    ("instance_norm", "channels last", 2, False, "activation", 64, 48**3, V48, 0.8, "48"),
    ("instance_norm", "channels last", 2, False, "activation", 64, 12**2, V12, 1.4, "12"),
    (
        "instance_norm",
        "channels last",
        2,
        False,
        "activation inside",
        64,
        48**3,
        V48,
        1.3,
        "48",
    ),
    (
        "instance_norm",
        "channels last",
        2,
        False,
        "both inside",
        64,
        48**3,
        V48,
        1.2,
        "48",
    ),
    ("instance_norm", "channels last", 2, False, "sum", 64, 48**3, V48, 0.7, "48"),
    ("instance_norm", "channels last", 2, False, "both sum", 64, 48**3, V48, 1.1, "48"),
    ("group_norm", "channels last", 2, False, "silu inside", 512, 1024, 2**19, 1.2, "8"),
    ("group_norm", "channels last", 2, False, "both silu inside", 512, 1024, 2**19, 0.9, "8"),
    ("group_norm", "channels last", 2, True, "silu inside", 512, 1024, 2**19, 1.2, "8"),
    ("group_norm", "channels first", 4, False, "", 16 * 56**2, 16 * 56**2, 10**7, 1.3, "56"),
    ("rms_norm", "rows", 4, False, "", 512, 512, 512 * 512, 0.9, "512 x 512"),
    ("rms_norm", "rows", 4, False, "", 512, 512, 4096 * 512, 0.95, "4096 x 512"),
    ("rms_norm", "rows", 4, False, "", 512, 512, 65536 * 512, 1.5, "65536 x 512"),
)
CPU_TABLE = (
    ("layer_norm", "rows", 4, True, "", 10, 10, 100_000, 0.97, "10000 x 10"),
    ("layer_norm", "rows", 4, True, "", 10, 10, 4096000, 1.4, "409600 x 10"),
    ("layer_norm", "rows", 4, True, "", 768, 768, 80 * 768, 0.98, "80 x 768"),
    ("layer_norm", "rows", 4, True, "", 768, 768, 512 * 768, 2.02, "512 x 768"),
    ("layer_norm", "rows", 4, True, "", 1024, 1024, 4096 * 1024, 3.48, "4096 x 1024"),
    ("instance_norm", "channels last", 4, False, "", 48, 64**2, 2 * 64**2 * 48, 1.58, "64"),
    ("instance_norm", "channels last", 4, False, "", 32, 256**2, 2 * 256**2 * 32, 3.03, "256"),
)


def left(kind: str, shape: Any, axes: tuple[int, ...], **changed: Any) -> str:
    given: dict[str, Any] = {
        "gradient": "fused",
        "dtype": "float32",
        "producer": "MatMul",
        "readers": ("MatMul", "AddV2"),
        "data_format": "",
        "groups": 0,
        "device_type": "GPU",
        **changed,
    }
    return _xla_rule.why_left(_xla_rule.Norm(kind=kind, shape=shape, axes=axes, **given))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(lines: tuple[Any, ...]) -> list[_xla_rule.Measured]:
        return [_xla_rule.Measured(*line) for line in lines]

    tables = {"GPU": measured(TABLE), "CPU": measured(CPU_TABLE)}
    monkeypatch.setattr(_xla_rule, "MEASURED", tables)


FORWARD = {"gradient": ""}
HALF = {"dtype": "bfloat16"}
LAST = FORWARD | {"data_format": "N...C"}
FIRST = FORWARD | {"data_format": "NC..."}
CPU = {"device_type": "CPU"}
INSIDE = LAST | HALF | {"activation_inside": True}
SILU = INSIDE | {"silu": True, "groups": 32}
ADDED = {"producer": "AddV2", "readers": ("AddN",)}


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "kind,shape,axes,changed",
    [
        ("layer_norm", (16384, 768), (-1,), {}),
        ("layer_norm", (32, 512, 768), (2,), {}),
        ("layer_norm", (8000, 2, 384), (1, 2), {}),
        ("layer_norm", (16384, 768), (-1,), {"readers": ("Mul", "Split")}),
        ("layer_norm", (16384, 768), (-1,), {"readers": ("MatMul", "Split")}),
        ("layer_norm", (16384, 768), (-1,), {"readers": ("Mul", "Split", "Transpose")}),
        ("layer_norm", (16384, 768), (-1,), {"readers": ("MatMul", "Mean")}),
        ("layer_norm", (16384, 768), (-1,), {"skip": True}),
        ("layer_norm", (16384, 768), (-1,), {"producer": "AddV2"}),
        ("layer_norm", (None, 512, 768), (2,), {"producer": "AddV2"}),
        ("layer_norm", (16384, 768), (-1,), HALF),
        ("layer_norm", (16384, 768), (-1,), {"dtype": "float16"}),
        ("instance_norm", (2, 96, 96, 96, 32), (-4, -3, -2), LAST),
        ("instance_norm", (None, 90, 90, 90, 48), (-4, -3, -2), LAST),
        ("group_norm", (64, 256, 56, 56), (1, 2, 3), FIRST | {"groups": 16}),
        ("group_norm", (None, 256, 72, 72), (1, 2, 3), FIRST | {"groups": 16}),
        ("instance_norm", (2, 48, 48, 48, 64), (1, 2, 3), INSIDE),
        ("instance_norm", (2, 48, 48, 48, 64), (1, 2, 3), INSIDE | {"readers": ()}),
        ("instance_norm", (2, 48, 48, 48, 64), (1, 2, 3), INSIDE | {"producer": "AddV2"}),
        ("instance_norm", (2, 48, 48, 48, 64), (1, 2, 3), INSIDE | {"producer": "ConcatV2"}),
        ("instance_norm", (1500, 12, 12, 64), (1, 2), INSIDE),  # as if it were outside
        ("group_norm", (77, 8, 8, 512), (1, 2, 3), SILU),
        ("group_norm", (16, 8, 8, 512), (1, 2, 3), SILU | {"gradient": "fused"}),
        ("instance_norm", (2, 48, 48, 48, 64), (1, 2, 3), LAST | HALF | ADDED),
        ("layer_norm", (512, 768), (-1,), CPU),
        ("layer_norm", (512, 767), (-1,), CPU),
        ("layer_norm", (100_000, 12), (-1,), CPU),
        ("layer_norm", (None, 768), (-1,), CPU),
        ("layer_norm", (None, 10), (-1,), CPU),
        ("layer_norm", (None, None), (-1,), CPU),
        ("layer_norm", (None, None, None, None), (-1,), CPU),
        ("instance_norm", (None, None, None, 32), (1, 2), LAST | CPU),
    ],
)
def test_what_was_measured_to_pay_is_fused(
    kind: str, shape: Any, axes: tuple[int, ...], changed: dict[str, Any]
) -> None:
    assert left(kind, shape, axes, **changed) == ""


NOT_MEASURED = "nothing like it was measured"


# fmt: off
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "kind,shape,axes,changed,why",
    [
        ("layer_norm", (16384, 768), (-1,), {"readers": ("Mul", "Erf")}, "0.90 times as fast"),
        ("layer_norm", (16384, 4096), (-1,), {}, "1.04 times as fast"),
        ("layer_norm", (100_000, 100), (-1,), HALF, "0.99 times as fast"),
        ("layer_norm", (16384, 100_000), (-1,), {}, NOT_MEASURED),
        ("layer_norm", (600_000, 768), (-1,), {}, NOT_MEASURED),
        ("layer_norm", (325, 768), (-1,), {}, "fewer than 250,000 elements: too few to pay for"),
        ("layer_norm", (None, 7800), (-1,), {}, "fewer than 250,000 elements"),
        ("rms_norm", (480, 512), (-1,), FORWARD, "fewer than 250,000 elements"),
        ("instance_norm", (None, 11, 11, 64), (1, 2), LAST, "fewer than 250,000 elements"),
        ("group_norm", (7, 8, 8, 512), (1, 2, 3), SILU, "fewer than 250,000"),
        (
            "group_norm", (77, 8, 8, 512), (1, 2, 3), SILU | {"producer": "AddV2"},
            "0.90 times as fast",
        ),
        ("group_norm", (99, 8, 8, 8192), (1, 2, 3), SILU, "a silu inside"),
        (
            "instance_norm", (2, 48, 48, 48, 64), (1, 2, 3), LAST | HALF | {"readers": ("AddV2",)},
            "0.70 times as fast",
        ),
        (  # not sums alone
            "instance_norm", (2, 48, 48, 48, 64), (1, 2, 3),
            LAST | HALF | {"readers": ("AddV2", "Mul")}, "0.80 times as fast",
        ),
        (  # as an activation after it, where no sum was measured
            "layer_norm", (16384, 768), (-1,), {"readers": ("AddV2",)}, "0.90 times as fast",
        ),
        (  # as elementwise ops after it, where none of parts were measured
            "instance_norm", (2, 48, 48, 48, 64), (1, 2, 3),
            LAST | HALF | {"readers": ("Mul", "StridedSlice")}, "0.80 times as fast",
        ),
        (
            "layer_norm", (16384, 768), (-1,), HALF | {"readers": ("Split",)},
            "elementwise ops after, of parts of it",
        ),
        (
            "layer_norm", (16384, 768), (-1,), {"readers": ("Slice",), "producer": "Mul"},
            "elementwise ops on both sides, of parts of it",
        ),
        (
            "layer_norm", (16384, 768), (-1,), {"readers": ("Mean", "Mul", "Transpose")},
            "0.92 times as fast",
        ),
        (
            "layer_norm", (16384, 768), (-1,), {"producer": "AddV2", "skip": True},
            "0.93 times as fast",
        ),
        (  # of what is summed and read twice nothing else was measured
            "layer_norm", (16384, 768), (-1,), HALF | {"producer": "AddV2", "skip": True},
            "a sum before, which goes on beside it",
        ),
        (  # as elementwise ops after it, where nothing that was moved or squeezed was measured
            "instance_norm", (2, 48, 48, 48, 64), (1, 2, 3),
            INSIDE | {"readers": ("Mean", "Mul")}, "0.80 times as fast",
        ),
        (
            "instance_norm", (2, 48, 48, 48, 64), (1, 2, 3),
            LAST | HALF | {"readers": ("Roll",)}, "0.80 times as fast",
        ),
        ("layer_norm", (16384, 766), (-1,), {}, NOT_MEASURED),
        ("layer_norm", (16384, 768), (-1,), FORWARD, NOT_MEASURED),
        ("layer_norm", (16384, 768), (-1,), HALF | {"producer": "AddV2"}, NOT_MEASURED),
        ("layer_norm", (None, None, None), (-1,), {}, "1.04 times as fast"),
        ("layer_norm", (200, 300, 9), (1,), {}, NOT_MEASURED),
        ("layer_norm", None, (-1,), {}, NOT_MEASURED),
        ("rms_norm", (16384, 768), (-1,), {}, NOT_MEASURED),
        ("layer_norm", (16384, 768), (-1,), {"gradient": "stock"}, "gradient stays"),
        ("layer_norm", (16384, 768), (-1,), {"goes_on": True}, "scaled or shifted for each sample"),
        ("layer_norm", (512, 768), (-1,), CPU | {"goes_on": True}, "scaled or shifted for each"),
        ("layer_norm", (16384, 768), (-1,), {"dtype": "float64"}, NOT_MEASURED),
        ("rms_norm", (None, None, 512), (-1,), FORWARD, "0.95 times as fast"),
        ("layer_norm", (None, 768), (-1,), CPU | {"gradient": "stock"}, "gradient stays"),
        ("layer_norm", (80, 768), (-1,), CPU, "0.98 times as fast"),
        ("layer_norm", (9000, 12), (-1,), CPU, "0.97 times as fast"),
        ("layer_norm", (65, 768), (-1,), CPU, "fewer than 50,000 elements"),
        ("layer_norm", (1, 10), (-1,), CPU, "fewer than 50,000 elements"),
        ("layer_norm", (512, 768), (-1,), CPU | HALF, NOT_MEASURED),
        ("layer_norm", (512, 768), (-1,), CPU | {"producer": "AddV2"}, NOT_MEASURED),
        ("layer_norm", (None, 64), (-1,), CPU | {"gradient": ""}, NOT_MEASURED),
        ("layer_norm", None, (-1,), CPU | {"readers": ("Tanh",)}, NOT_MEASURED),
        ("instance_norm", (4, 24, 24, 24, 256), (1, 2, 3), LAST, "0.88 times as fast"),
        ("instance_norm", (None, None, None, None, 32), (1, 2, 3), LAST, "0.88 times as fast"),
        ("instance_norm", (2, 48, 48, 48, 64), (1, 2, 3), LAST | HALF, "1.02 times as fast"),
        (
            "instance_norm", (2, 48, 48, 48, 64), (1, 2, 3), LAST | HALF | {"readers": ("Relu",)},
            "0.80 times as fast",
        ),
        (  # one more op after it, which XLA computes with the norm
            "instance_norm", (2, 48, 48, 48, 64), (1, 2, 3), INSIDE | {"readers": ("AddV2",)},
            "0.70 times as fast",
        ),
        (
            "instance_norm", (1500, 12, 12, 64), (1, 2), INSIDE | {"producer": "AddV2"},
            f"{NOT_MEASURED} inside XLA on a GPU (instance_norm, channels last, 2 bytes to an "
            "element, forward, elementwise ops before, an activation inside)",
        ),
        (
            "instance_norm", (2, 96, 96, 96, 32), (1, 2, 3), INSIDE | {"dtype": "float32"},
            NOT_MEASURED,
        ),
        ("instance_norm", (2, 32, 96, 96, 96), (2, 3, 4), FIRST, NOT_MEASURED),
        ("group_norm", (64, 56, 56, 256), (1, 2, 3), LAST | {"groups": 16}, NOT_MEASURED),
        ("group_norm", (64, 256, 56, 56), (1, 2, 3), FIRST | {"groups": 1}, NOT_MEASURED),
    ],
)
# fmt: on
def test_the_others_are_left_with_a_reason(
    kind: str, shape: Any, axes: tuple[int, ...], changed: dict[str, Any], why: str
) -> None:
    assert why in left(kind, shape, axes, **changed)


MEASURED = [(device, m) for device, lines in _xla_rule.MEASURED.items() for m in lines]


# Who reads y there; else MatMul.
READERS = {
    "activation": ("Tanh",),
    "both": ("Tanh",),
    "sum": ("AddV2",),
    "both sum": ("AddV2",),
    "parts": ("Mul", "Split"),
    "moved": ("Transpose",),
    "squeezed": ("Mean", "Mul"),
}


@pytest.mark.parametrize(
    "device,m",
    MEASURED,
    ids=lambda m: m if isinstance(m, str) else f"{m.kind} {m.layout} {m.shape} {m.neighbours}",
)
def test_each_measured_case_decides_itself(device: str, m: _xla_rule.Measured) -> None:
    sizes, dtype = m.shape.rsplit(" ", 1)
    shape = tuple(int(size) for size in sizes.split(" x "))
    axes, data_format, groups = (-1,), "", 0
    if m.layout != "rows":
        first = m.layout == "channels first"
        data_format = "NC..." if first else "N...C"
        axes = tuple(range(2, len(shape))) if first else tuple(range(1, len(shape) - 1))
        channels = shape[1 if first else -1]
        if m.kind == "group_norm":
            groups = channels * (m.elements // shape[0] // channels) // m.size
    why = left(
        m.kind,
        shape,
        axes,
        dtype=dtype,
        gradient="fused" if m.gradient else "",
        producer="AddV2" if m.neighbours.startswith(("residual", "both", "skip")) else "MatMul",
        readers=READERS.get(m.neighbours, ("MatMul",)),
        skip=m.neighbours == "skip",
        activation_inside=m.neighbours.endswith("inside"),
        silu="silu" in m.neighbours,
        data_format=data_format,
        groups=groups,
        device_type=device,
    )
    least = {"CPU": 50_000, "GPU": 250_000}[device]
    if m.elements < least:
        assert f"fewer than {least:,} elements" in why
        return
    assert (why == "") == (m.speedup >= 1.05), why
    assert not why or f"{m.speedup:.2f} times" in why


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_the_table_is_what_was_measured(device: str) -> None:
    path = ROOT / "benchmarks" / "xla_rule.py"
    spec = importlib.util.spec_from_file_location("xla_rule", path)
    assert spec is not None and spec.loader is not None
    xla_rule = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(xla_rule)
    text = xla_rule.OUT[device].read_text()
    sources = re.findall(r"benchmarks/results/[-\w]+\.(?:md|csv)", text)
    assert sources and xla_rule.module(device, [ROOT / source for source in sources]) == text
