"""docs/reasons.md has each reason that the code can give, with its sentence, and no other."""

from __future__ import annotations

import re

from processes import PACKAGES, ROOT


def _of_the_recognizer() -> dict[str, str]:
    """Names and sentences in plugin/**/reasons.cc."""
    names, sentences = {}, {}
    for file in (ROOT / "plugin").rglob("reasons.cc"):
        name_function, _, sentence_function = file.read_text().partition("ReasonSentence(")
        for function, found in ((name_function, names), (sentence_function, sentences)):
            cases = re.findall(r"case Reason::(\w+):\s*return\s+((?:\"[^\"]*\"\s*)+);", function)
            found |= {case: "".join(re.findall(r"\"([^\"]*)\"", text)) for case, text in cases}
    assert names.keys() == sentences.keys()
    return {names[case]: sentences[case] for case in names if names[case]}


def _of_traces() -> set[str]:
    """What the Python package itself writes into records."""
    found = set()
    for file in (PACKAGES / "nv_norms_rewriter").glob("*.py"):
        code = file.read_text()
        for value in re.findall(r"\breason=([A-Z_]+|\"\w+\")", code):
            constant = re.search(rf"^{value} = (\"\w+\")", code, re.M)
            found.add((constant.group(1) if constant else value).strip('"'))
    return found


def _on_the_page() -> list[tuple[str, str]]:
    page = (ROOT / "docs" / "reasons.md").read_text()
    return re.findall(r"^\| `(\w+)` \| (.*?) \| .+ \|$", page, re.M)


def test_the_page_has_each_reason_once_and_no_other() -> None:
    recognizer, traces = _of_the_recognizer(), _of_traces()
    assert len(recognizer) >= 20 and len(traces) >= 3
    listed = [name for name, _ in _on_the_page()]
    assert sorted(listed) == sorted({*recognizer, *traces})


def test_the_page_has_the_sentences_of_the_code() -> None:
    recognizer = _of_the_recognizer()
    page = {name: sentence for name, sentence in _on_the_page() if name in recognizer}
    assert page == recognizer
