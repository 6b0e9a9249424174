"""Programs whose locale writes numbers with a comma."""

from __future__ import annotations

from pathlib import Path

from processes import NORM, result

# What localedef makes of "decimal_point ','; thousands_sep '.'": a locale's LC_NUMERIC.
_COMMA = bytes.fromhex(
    "14110320" "06000000" "20000000" "22000000" "24000000" "28000000" "2c000000" "30000000"
    "2c00" "2e00" "03030000" "2c000000" "2e000000" "5554462d3800"
)  # fmt: skip


def test_decimal_comma(tmp_path: Path) -> None:
    """Numbers go from C++ to Python, and to XLA, as text."""
    folder = tmp_path / "xx_XX"
    folder.mkdir()
    (folder / "LC_NUMERIC").write_bytes(_COMMA)
    code = """
import ctypes, locale, os
os.environ["LOCPATH"] = sys.argv[1]
locale.setlocale(locale.LC_NUMERIC, "xx_XX")
text = ctypes.create_string_buffer(32)
ctypes.CDLL(None).snprintf(text, 32, b"%.1f", ctypes.c_double(0.5))
import nv_norms_rewriter
nv_norms_rewriter.configure(xla="all")
compiled = tf.function(norm().python_function, jit_compile=True)
values = [right(norm()(x)), right(compiled(x))]
records = nv_norms_rewriter.report()
print(json.dumps([text.value.decode(), values, [abs(r.epsilon - 1e-3) < 1e-9 for r in records]]))
"""
    (written, values, epsilons), _ = result(NORM + code, tmp_path)
    assert written == "0,5"
    assert values == [True, True]
    assert epsilons == [True, True]
