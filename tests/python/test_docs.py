"""The code on the pages that say that it runs does run, from top to bottom."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from processes import PACKAGES, ROOT

PAGES = ["docs/normalizations.md", "docs/remapper.md"]


def _python(page: str) -> str:
    """The page's blocks, each on the lines where it stands, so that errors say where."""
    text = (ROOT / page).read_text()
    lines = [""] * (text.count("\n") + 1)
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S):
        first = text[: match.start(1)].count("\n")
        block = match.group(1).splitlines()
        lines[first : first + len(block)] = block
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_runs(page: str) -> None:
    code = _python(page)
    assert code.count("assert") >= 3
    program = f"exec(compile({code!r}, {page!r}, 'exec'), {{'__name__': 'page'}})"
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=PACKAGES,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-4000:]


def test_links_within_the_repository_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "kernels" / "README.md"]
    missing = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                missing.append(f"{page.relative_to(ROOT)}: {target}")
    assert not missing
