"""What the engine's commands show on a terminal besides reports: progress, formats, inspections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from converter.formats import FloatFormat
from converter.report.wording import printable


@contextmanager
def progress(silent: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A callback for a child's events: one bar per stage on a TTY, warnings as lines on stderr."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=silent or not console.is_terminal, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(event: Mapping[str, Any]) -> None:
            if event["event"] == "progress":
                stage = str(event["stage"])
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=event["total"])
                bars.update(tasks[stage], completed=event["done"], total=event["total"])
            elif event["event"] == "warning":
                console.print(f"warning: {printable(str(event['message']))}", markup=False, highlight=False)

        yield show


def format_facts(fmt: FloatFormat) -> dict[str, Any]:
    """A format's limits as plain values."""
    return {
        "name": fmt.name,
        "label": fmt.label,
        "storage_bits": fmt.storage_bits,
        "exponent_bits": fmt.exponent_bits,
        "mantissa_bits": fmt.mantissa_bits,
        "max_finite": fmt.max_finite,
        "overflow_threshold": fmt.overflow_threshold,
        "smallest_normal": fmt.smallest_normal,
        "smallest_subnormal": fmt.smallest_subnormal,
        "eps": fmt.eps,
        "unit_roundoff": fmt.unit_roundoff,
        "largest_exact_integer": fmt.largest_exact_integer,
    }


_FORMAT_ROWS: tuple[tuple[str, Callable[[FloatFormat], str]], ...] = (
    ("bits (exponent, mantissa)", lambda f: f"{f.storage_bits} ({f.exponent_bits}, {f.mantissa_bits})"),
    ("largest finite", lambda f: f"{f.max_finite:.6g}"),
    ("rounds to infinity from", lambda f: f"{f.overflow_threshold:.6g}"),
    ("smallest normal", lambda f: f"{f.smallest_normal:.4g}"),
    ("smallest subnormal", lambda f: f"{f.smallest_subnormal:.4g}"),
    ("eps (1 to the next number)", lambda f: f"{f.eps:.3g}"),
    ("unit roundoff", lambda f: f"{f.unit_roundoff:.3g}"),
    ("all integers exact up to", lambda f: f"{f.largest_exact_integer:,}"),
)


def formats_table(formats: Iterable[FloatFormat]) -> Table:
    """The formats side by side."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    shown = list(formats)
    for fmt in shown:
        table.add_column(fmt.label, justify="right")
    for title, cell in _FORMAT_ROWS:
        table.add_row(title, *(cell(f) for f in shown))
    return table


def inspection(found: Mapping[str, Any]) -> Group:
    """An inspection: the recommendation, decisions by rule, what stays FP32, and the ranges."""
    facts = found["model"]
    recommendation = found["recommendation"]
    head = Text(f"{printable(facts['name'])}: {facts['nodes']} nodes, opset {facts['opset']}\n")
    head.append(f"recommended: {recommendation['format']}", style="bold")
    head.append(f" ({recommendation['reason']})")
    parts: list[Any] = [head, Text(), _rules(found)]
    wide = [d for d in found["decisions"] if d["format"] == "fp32"]
    if wide:
        parts += [Text(), _wide(wide)]
    if found["values"]:
        parts += [Text(), _ranges(found["values"])]
    return Group(*parts)


def _rules(found: Mapping[str, Any]) -> Table:
    counts: dict[tuple[str, str], int] = {}
    for decision in found["decisions"]:
        key = (decision["rule"], decision["format"])
        counts[key] = counts.get(key, 0) + 1
    table = Table(box=None, pad_edge=False)
    for title, justify in (("decided by", "left"), ("nodes", "right"), ("format", "left")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for (rule, fmt), count in sorted(counts.items(), key=lambda entry: -entry[1]):
        table.add_row(rule, str(count), fmt)
    return table


def _wide(decisions: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("stays FP32", "operator", "why"):
        table.add_column(title, overflow="fold")
    for decision in decisions:
        table.add_row(Text(printable(decision["node"])), decision["op_type"], Text(printable(decision["reason"])))
    return table


def _ranges(values: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title, justify in (
        ("value", "left"), ("min", "right"), ("max", "right"), ("headroom FP16", "right"), ("BF16", "right"),
        ("flushed FP16", "right"), ("BF16", "right"), ("saturated FP16", "right"), ("binary exponents", "left"),
    ):  # fmt: skip
        table.add_column(title, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for value in values:
        bars = value["histogram"]
        span = f"{bars['low']:4} {bars['bars']} {bars['high']}" if bars["bars"] else "zeros only"
        table.add_row(
            Text(printable(value["value"])),
            f"{value['minimum']:.4g}",
            f"{value['maximum']:.4g}",
            *(_bits(value["headroom_bits"][f]) for f in ("fp16", "bf16")),
            *(_share(value["flushed_share"][f]) for f in ("fp16", "bf16")),
            _share(value["saturated_share"]["fp16"]),
            span,
        )
    return table


def _bits(bits: float | None) -> str:
    return "-" if bits is None else f"{bits:+.1f}"


def _share(share: float) -> str:
    return "0" if not share else f"{share:.2%}"
