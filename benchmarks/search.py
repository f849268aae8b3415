"""The search on graphs with planted faults: evaluations, what it found, what it kept FP32 besides.

python -m benchmarks.search [--seeds 20] [--nodes 1000] [--faults 10] [--kinds add-subtract,...] [--to fp16]
python -m benchmarks.search --real [MODEL ...]    the public models, with their FP32 sets
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict

from benchmarks.planted import KINDS, planted
from converter import convert
from converter.types import Report
from tests.real.models import MODELS

TOLERANCE = 2e-2
REAL_TOLERANCE = 5e-3
REAL_EVALUATIONS = 12


def main() -> int:
    """Print one line per seed or model and a summary; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", nargs="*", metavar="MODEL")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--kinds", default="add-subtract")
    parser.add_argument("--to", default="fp16")
    args = parser.parse_args()
    return planted_graphs(args) if args.real is None else real_models(args.real, args.to)


def real_models(names: list[str], to: str) -> int:
    """The public models under one tolerance; 1 when one fails or needs more evaluations than the bar."""
    missed = 0
    print("| model | verdict | rel. L2 | evaluations | FLOPs narrow | narrow nodes | casts | seconds |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    reports = []
    for model in MODELS:
        if model.file is None or (names and model.name not in names):
            continue
        started = time.perf_counter()
        report = convert(model.file, model.batches(model.file), to=to, search=True, max_rel_l2=REAL_TOLERANCE).report
        seconds = time.perf_counter() - started
        missed += report.verdict.status != "pass" or report.summary.search_evaluations > REAL_EVALUATIONS
        print(row(model.name, report, seconds), flush=True)
        reports.append((model.name, report))
    for name, report in reports:
        print_wide(name, report)
    return 1 if missed else 0


def row(name: str, report: Report, seconds: float) -> str:
    summary = report.summary
    error = max(o.figures.rel_l2_error or 0.0 for o in report.outputs if o.figures is not None)
    nodes = f"{summary.narrow_nodes}/{summary.float_nodes}"
    share = f"{100 * summary.narrow_flops_share:.1f} %"
    cells = [name, report.verdict.status, f"{error:.1e}", summary.search_evaluations, share, nodes,
             summary.casts, f"{seconds:.1f}"]  # fmt: skip
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def print_wide(name: str, report: Report) -> None:
    """What stays FP32, by rule and operator."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for decision in report.decisions:
        if decision.format == "fp32":
            groups[decision.rule, decision.op_type].append(decision.node)
    print(f"\n{name}: {sum(map(len, groups.values()))} nodes stay FP32")
    for (rule, op_type), nodes in sorted(groups.items()):
        more = f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
        print(f"  {rule:24} {op_type:20} {len(nodes):3}  {', '.join(nodes[:4])}{more}")


def planted_graphs(args: argparse.Namespace) -> int:
    kinds = args.kinds.split(",") if args.kinds != "all" else list(KINDS)
    missed = 0
    print("seed  verdict  evaluations  seconds  planted  found  others  rel_l2")
    for seed in range(args.first, args.first + args.seeds):
        model, batch, truth = planted(seed, args.nodes, args.faults, kinds)
        started = time.perf_counter()
        report = convert(model, batch, to=args.to, search=True, max_rel_l2=TOLERANCE).report
        seconds = time.perf_counter() - started
        wide = {d.node for d in report.decisions if d.format == "fp32"}
        found, others = len(wide & set(truth)), len(wide - set(truth))
        error = max(o.figures.rel_l2_error or 0.0 for o in report.outputs if o.figures is not None)
        good = report.verdict.status == "pass" and found == len(truth) and others <= 20
        good = good and report.summary.search_evaluations <= 60
        missed += not good
        print(
            f"{seed:4}  {report.verdict.status:7}  {report.summary.search_evaluations:11}  {seconds:7.1f}  "
            f"{len(truth):7}  {found:5}  {others:6}  {error:.2e}{'' if good else '  MISSED'}",
            flush=True,
        )
    print(f"{args.seeds - missed} of {args.seeds} within the bars")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
