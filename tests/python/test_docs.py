"""The code on the pages that say that it runs does run, from top to bottom."""

from __future__ import annotations

import re

import pytest
from processes import ROOT, result, run

PAGES = ["docs/normalizations.md", "docs/remapper.md"]
RESULTS = ROOT / "benchmarks" / "results"
ALL = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "kernels" / "README.md"]
# What the README's code takes for given.
GIVEN = """
import keras, tensorflow as tf
x = tf.random.normal((2, 4, 4, 4, 32))
scale, offset = tf.ones(32), tf.zeros(32)
model = keras.Sequential([keras.layers.LayerNormalization()])
"""


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
    _run(page, code)


def test_the_code_of_the_readme_runs_and_fuses() -> None:
    output = _run("README.md", _python("README.md"), GIVEN)
    assert "1 normalization found, 1 fused (1 layer_norm forward)" in output


def _run(page: str, code: str, given: str = "") -> str:
    # As the pages show it, on a CPU.
    code = f"{given}\nexec(compile({code!r}, {page!r}, 'exec'))"
    process = run(code, CUDA_VISIBLE_DEVICES="")
    assert process.returncode == 0, process.stderr[-4000:]
    return process.stdout


def test_the_picture_of_the_readme_is_what_inspect_draws() -> None:
    code = """
        import json, keras, tensorflow as tf, nv_norms_rewriter
        specs = [tf.TensorSpec(shape, name=name) for name, shape in
                 [("x", (None, 128, 768)), ("gamma", (768,)), ("beta", (768,))]]
        norm = lambda x, gamma, beta: keras.ops.layer_normalization(x, gamma, beta, axis=-1)
        before = tf.function(norm).get_concrete_function(*specs).graph.as_graph_def()
        after, _ = nv_norms_rewriter.rewrite(before, device="CPU")
        print(json.dumps([[node.name for node in graph.node] for graph in (before, after)]))
    """
    names = result(code)[0]
    picture = (ROOT / "docs" / "images" / "layer_norm.svg").read_text()
    for side, expected in zip(("before", "after"), names, strict=True):
        drawn = re.findall(rf"<title>0_{side}/([^&<]*)</title>", picture)
        assert sorted(drawn) == sorted(expected)
    before, after = (len(of) for of in names)
    assert f"before, {before} nodes, and after, {after} nodes" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page, heading", [("README.md", "## How fast"), ("docs/speed.md", "# ")])
def test_figures_are_those_of_the_results(page: str, heading: str) -> None:
    """A number with a decimal point stands in a linked file, or is a ratio of two in its line."""
    section = (ROOT / page).read_text().partition(heading)[2]
    if heading.startswith("##"):
        section = section.partition("\n## ")[0]
    assert len(re.findall(r"\]\((?:\.\./)?benchmarks/results/", section)) >= 3
    unknown, checked = [], 0
    for part in re.split(r"(?<=\|)\n\n", section):  # a table, and what is said before it
        links = re.findall(r"\]\((?:\.\./)?(benchmarks/results/[^)]+\.(?:md|csv|txt))\)", part)
        known = set(re.findall(r"\d+\.\d+", "".join((ROOT / link).read_text() for link in links)))
        for line in part.splitlines():
            numbers = re.findall(r"\d+\.\d+", line) if line.startswith("|") else []
            values = [float(value) for value in re.findall(r"\d+(?:\.\d+)?", line)]
            ratios = {f"{a / b:.2f}" for a in values for b in values if a != b and b}
            checked += len(numbers)
            unknown += [(number, line) for number in numbers if number not in known | ratios]
    assert not unknown
    assert checked >= 20


def test_links_within_the_repository_lead_somewhere() -> None:
    missing = []
    for page in [*ALL, *RESULTS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                missing.append(f"{page.relative_to(ROOT)}: {target}")
    assert not missing


def test_each_result_is_shown_somewhere() -> None:
    """Linked from a page, or the CSV file beside a folder's tables."""
    shown = {
        (page.parent / target).resolve()
        for page in [*ALL, *RESULTS.rglob("*.md")]
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text())
    }
    for file in RESULTS.rglob("*.*"):
        tables = file.suffix == ".csv" and (file.parent / "tables.md").exists()
        assert tables or file.resolve() in shown or file == RESULTS / "README.md", file
    assert len(shown) >= 20


def test_commands_name_files_and_targets_that_exist() -> None:
    targets = set(re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)[0].split())
    missing, found = [], 0
    for page in ALL:
        text = page.read_text()
        code = re.findall(r"`([^`\n]+)`|^(?:    |\$ )(.*)", text, re.M)
        for line in (inline or block for inline, block in code):
            make = re.match(r"make ([a-z ]+)", line)
            names = make.group(1).split() if make else []
            missing += [f"{page.name}: make {name}" for name in names if name not in targets]
            for path in re.findall(r"(?<![\w/.])[a-z_]+/[\w/]+\.(?:py|sh|md|h|cc|cu)\b", line):
                found += 1
                if not any((folder / path).exists() for folder in (ROOT, page.parent)):
                    missing.append(f"{page.name}: {path}")
    assert not missing
    assert found >= 20


def test_environment_variables_are_read_somewhere() -> None:
    named = {name for page in ALL for name in re.findall(r"NV_NORMS_[A-Z_]+", page.read_text())}
    folders = ["python", "plugin", "kernels", "tests", "tools", "third_party", "benchmarks"]
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]
    code = "".join(
        file.read_text(errors="replace")
        for file in files
        if file.suffix in {".py", ".cc", ".h", ".cu", ".sh", ".bzl", ""}
    )
    assert len(named) >= 4
    assert not {name for name in named if name not in code}
