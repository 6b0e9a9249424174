"""Runs the corpus by hand: python -m tests.corpus.run --filter ln --verbose.

For each case: the fused records expected and found, the errors against float64, and the reasons of
refusals; at the end a table of what is covered. The exit status is 1 if a case failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

TABLES = (
    "keras3",
    "functions",
    "spellings",
    "hub",
    "contexts",
    "legacy",
    "near_misses",
    "near_numbers",
    "models",
    "more_models",
    "addons",
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.run", description=__doc__)
    parser.add_argument("--table", action="append", choices=TABLES, help="default: all but addons")
    parser.add_argument("--filter", default="", help="regular expression on the cases' names")
    parser.add_argument("--slow", action="store_true", help="with the long tail")
    parser.add_argument("--only-slow", action="store_true", help="the long tail alone")
    parser.add_argument("--verbose", action="store_true", help="every case, not only failures")
    parser.add_argument("--gradients", action="store_true", help="also training left unfused")
    parser.add_argument("--stock", action="store_true", help="check the cases themselves, unfused")
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("--dump", metavar="DIR", help="write the graphs that the pass is given")
    parser.add_argument("--json", metavar="FILE", help="write the outcomes")
    return parser.parse_args(arguments)


def select(options: argparse.Namespace) -> dict[str, list]:
    """The cases by table."""
    from .cases import load
    from .line import unfold

    chosen = {}
    for table in options.table or TABLES[:-1]:
        chosen[table] = [
            case
            for case in unfold(load(table))
            if re.search(options.filter, case.name)
            and (not options.only_slow or case.slow)
            and (options.slow or options.only_slow or not case.slow)
        ]
    return chosen


def coverage(outcomes: dict[str, list]) -> str:
    """One line per table: cases, passed, failed, skipped, training cases with fused gradients."""
    rows = [("table", "cases", "passed", "failed", "skipped", "gradients", "seconds")]
    for table, those in outcomes.items():
        skipped = sum(bool(outcome.skipped) for outcome in those)
        failed = sum(not outcome.ok for outcome in those)
        seconds = sum(outcome.seconds for outcome in those)
        training = [o for o in those if o.name.endswith("/train") and o.expected and not o.skipped]
        fused = sum(outcome.both_ways for outcome in training)
        counts = (len(those), len(those) - failed - skipped, failed, skipped)
        rows.append((table, *counts, f"{fused} of {len(training)}", f"{seconds:.0f}"))
    return "\n".join(f"{row[0]:14}" + "".join(f"{cell!s:>12}" for cell in row[1:]) for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if options.dump:
        os.environ["NV_NORMS_DUMP_DIR"] = str(Path(options.dump).resolve())
        Path(options.dump).mkdir(parents=True, exist_ok=True)
    source = str(Path(__file__).resolve().parents[2] / "python")
    if importlib.util.find_spec("nv_norms_rewriter") is None:
        sys.path.insert(0, source)
    chosen = select(options)
    if options.list:
        print("\n".join(case.name for those in chosen.values() for case in those))
        return 0
    rewriter = None
    if not options.stock:
        import nv_norms_rewriter as rewriter
    from .harness import check

    outcomes: dict[str, list] = {}
    for table, cases in chosen.items():
        outcomes[table] = []
        for case in cases:
            outcome = check(case, rewriter)
            outcomes[table].append(outcome)
            unfused = outcome.name.endswith("/train") and not outcome.both_ways
            if options.verbose or not outcome.ok or (options.gradients and unfused):
                print(outcome, flush=True)
    print(coverage(outcomes))
    if options.json:
        rows = [vars(outcome) for those in outcomes.values() for outcome in those]
        Path(options.json).write_text(json.dumps(rows, indent=1, default=dict))
    return int(any(not outcome.ok for those in outcomes.values() for outcome in those))


if __name__ == "__main__":
    sys.exit(main())
