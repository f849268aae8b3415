"""The engine's commands.  Each runs in a child process, so that a native crash is an exit status and a message.

stdout carries results only; progress, warnings and libraries' banners go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from converter import terminal
from converter.compare.tolerances import PRESETS
from converter.errors import EnvironmentFailure, OptionError
from converter.formats import FORMATS
from converter.isolation import run_isolated
from converter.report import read_report, view
from converter.report.terminal_view import render

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Samples = Annotated[list[Path] | None, typer.Option("--samples", help="a batch: .npz, .npy, .safetensors or a folder")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors")]
To = Annotated[str, typer.Option("--to", help="fp16 or bf16")]
Threads = Annotated[int, typer.Option("--threads", help="threads of the engine; 0: all cores", min=0)]


@app.command()
def convert(
    model: Annotated[Path, typer.Argument(help=".onnx (external data beside it), TorchScript, .pt2 or folder")],
    samples: Samples = None,
    to: To = "fp16",
    output: Annotated[Path | None, typer.Option(help="the converted model; a .pt2 comes beside its .onnx")] = None,
    report: Annotated[Path | None, typer.Option(help="the report as JSON")] = None,
    html: Annotated[Path | None, typer.Option(help="the report as one HTML file")] = None,
    junit: Annotated[Path | None, typer.Option(help="the report as JUnit XML")] = None,
    csv: Annotated[Path | None, typer.Option(help="the layers as CSV")] = None,
    io_types: Annotated[str, typer.Option(help="keep, or narrow: inputs and outputs become 16-bit too")] = "keep",
    overflow: Annotated[str, typer.Option(help="clamp (with repair), or widen: no Clip is inserted")] = "clamp",
    optimise: Annotated[str, typer.Option(help="size: all that may be narrow; speed: casts are priced")] = "size",
    keep_fp32: Annotated[list[str] | None, typer.Option(help="node name pattern, or op:TYPE, to keep FP32")] = None,
    policy: Annotated[Path | None, typer.Option(help="policy file (docs/policy-files.md)")] = None,
    tolerance: Annotated[str | None, typer.Option(help="fp16-default, bf16-default, strict, loose or a file")] = None,
    max_rel_l2: Annotated[float | None, typer.Option(help="largest relative L2 error of any output", min=0)] = None,
    min_sqnr_db: Annotated[float | None, typer.Option(help="smallest SQNR of any output, in dB")] = None,
    target: Annotated[str, typer.Option(help="what the model must run on: any, cpu, cuda, ...")] = "any",
    provider: Annotated[str, typer.Option(help="what runs it here beside the emulator: none, cpu, cuda, ...")] = "none",
    emulate: Annotated[str, typer.Option(help="ieee, ascend, narrow-accumulate (joined by +), or a file")] = "ieee",
    search: Annotated[bool, typer.Option("--search", help="find the smallest FP32 set within the tolerance")] = False,
    repair: Annotated[bool, typer.Option("--repair/--no-repair", help="widen culprits when the plan fails")] = True,
    validate: Annotated[bool, typer.Option("--validate/--no-validate", help="run and compare the result")] = True,
    observe_until_stable: Annotated[
        bool, typer.Option("--observe-until-stable", help="stop observing ranges when 8 batches have not widened them")
    ] = False,
    metrics: Annotated[str, typer.Option(help="core, or all: the full set for every layer")] = "core",
    dynamic: Annotated[list[str] | None, typer.Option(help="ARGUMENT:AXIS to leave open, for PyTorch programs")] = None,
    seed: Annotated[int, typer.Option(help="seed of random operators")] = 0,
    threads: Threads = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Convert a model to mixed FP16/BF16 and prove it on sample batches."""
    target_path = output or Path(f"{model.stem}.{to}.onnx")
    _check_distinct(
        {"output": target_path, "report": report, "html": html, "junit": junit, "csv": csv}, [model, *(samples or [])]
    )
    options = {
        "to": to, "io_types": io_types, "overflow": overflow, "optimise": optimise, "keep_fp32": keep_fp32 or [],
        "policy": _text(policy), "tolerance": tolerance, "max_rel_l2": max_rel_l2, "min_sqnr_db": min_sqnr_db,
        "target": target, "provider": provider, "emulate": emulate, "search": search, "repair": repair,
        "validate": validate, "metrics": metrics,
        "observe_until_stable": observe_until_stable, "dynamic": dynamic or [], "seed": seed,
    }  # fmt: skip
    request = {
        "verb": "convert", "model": _absolute(model), "samples": [_absolute(p) for p in samples or []],
        "output": _absolute(target_path), "report": _absolute(report), "html": _absolute(html),
        "junit": _absolute(junit), "csv": _absolute(csv), "options": _resolved(options), "threads": threads,
        "show": _wanted(as_json, quiet),
    }  # fmt: skip
    answer = _run(request, quiet or as_json)
    models = _model_files(target_path, answer["refusal"])
    _say(answer, as_json, quiet, {**models, "report": report, "html": html, "junit": junit, "csv": csv})
    if answer["refusal"]:
        print(f"narrowcast: no {target_path}: {answer['refusal']}; {models['model']} is there", file=sys.stderr)
    raise typer.Exit(int(answer["exit_status"]))


@app.command(name="validate")
def validate_models(
    reference: Annotated[Path, typer.Argument(help="the FP32 model")],
    candidate: Annotated[Path, typer.Argument(help="the model to compare with it")],
    samples: Samples = None,
    to: To = "fp16",
    report: Annotated[Path | None, typer.Option(help="the report as JSON")] = None,
    html: Annotated[Path | None, typer.Option(help="the report as one HTML file")] = None,
    junit: Annotated[Path | None, typer.Option(help="the report as JUnit XML")] = None,
    csv: Annotated[Path | None, typer.Option(help="the layers as CSV")] = None,
    tolerance: Annotated[str | None, typer.Option(help="fp16-default, bf16-default, strict, loose or a file")] = None,
    max_rel_l2: Annotated[float | None, typer.Option(help="largest relative L2 error of any output", min=0)] = None,
    min_sqnr_db: Annotated[float | None, typer.Option(help="smallest SQNR of any output, in dB")] = None,
    emulate: Annotated[str, typer.Option(help="ieee, ascend, narrow-accumulate (joined by +), or a file")] = "ieee",
    seed: Annotated[int, typer.Option(help="seed of random operators")] = 0,
    threads: Threads = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare any two models layer by layer; values are paired by name."""
    views = {"report": report, "html": html, "junit": junit, "csv": csv}
    _check_distinct(views, [reference, candidate, *(samples or [])])
    options = {"to": to, "tolerance": tolerance, "max_rel_l2": max_rel_l2, "min_sqnr_db": min_sqnr_db,
               "emulate": emulate, "seed": seed}  # fmt: skip
    request = {
        "verb": "validate", "reference": _absolute(reference), "model": _absolute(candidate),
        "samples": [_absolute(p) for p in samples or []], "report": _absolute(report), "html": _absolute(html),
        "junit": _absolute(junit), "csv": _absolute(csv), "options": _resolved(options), "threads": threads,
        "show": _wanted(as_json, quiet),
    }  # fmt: skip
    answer = _run(request, quiet or as_json)
    _say(answer, as_json, quiet, views)
    raise typer.Exit(int(answer["exit_status"]))


@app.command()
def inspect(
    model: Annotated[Path, typer.Argument(help=".onnx file, or a PyTorch program (with --samples)")],
    samples: Samples = None,
    to: To = "fp16",
    keep_fp32: Annotated[list[str] | None, typer.Option(help="node name pattern, or op:TYPE, to keep FP32")] = None,
    policy: Annotated[Path | None, typer.Option(help="policy file (docs/policy-files.md)")] = None,
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Show ranges, sensitive nodes, and what would be converted and why."""
    options = {"to": to, "keep_fp32": keep_fp32 or [], "policy": _text(policy), "validate": False}
    request = {
        "verb": "inspect", "model": _absolute(model), "samples": [_absolute(p) for p in samples or []],
        "options": _resolved(options), "threads": threads,
    }  # fmt: skip
    found = _run(request, as_json)["inspection"]
    if as_json:
        print(json.dumps(found))
    else:
        Console().print(terminal.inspection(found))


@app.command(name="report")
def show_report(
    report: Annotated[Path, typer.Argument(help="a report as JSON")],
    view_format: Annotated[str, typer.Option("--format", help="html, csv, junit, markdown, model-explorer or json")],
    output: Annotated[Path | None, typer.Option(help="write there instead of stdout")] = None,
) -> None:
    """Turn a report into another view."""
    content = view(read_report(report), view_format)
    if output is None:
        sys.stdout.buffer.write(content)
    else:
        _write(output, content)


@app.command()
def formats(as_json: Json = False) -> None:
    """Show FP32, TF32, FP16 and BF16 side by side."""
    if as_json:
        print(json.dumps([terminal.format_facts(f) for f in FORMATS]))
    else:
        Console().print(terminal.formats_table(FORMATS))


def _run(request: Mapping[str, Any], silent: bool) -> Mapping[str, Any]:
    """Run a request in a child, with progress on stderr when a person watches."""
    with terminal.progress(silent) as show:
        return run_isolated(request, show)


def _check_distinct(written: Mapping[str, Path | None], given: Sequence[Path]) -> None:
    """Every file is written once, and none over a file that is read; only the model may be replaced by its result."""
    taken: dict[Path, str] = {}
    inputs = {p.resolve(): k for k, p in enumerate(given)}
    for option, path in written.items():
        if path is None or str(path) == os.devnull:
            continue
        place = path.resolve()
        replaced = inputs.get(place)
        if place in taken:
            raise OptionError(f"--{option} and --{taken[place]} are both '{path}'; give each file a name of its own")
        if replaced is not None and (option != "output" or replaced > 0):
            raise OptionError(f"--{option} '{path}' would overwrite a file that is read; give it another name")
        taken[place] = option


def _wanted(as_json: bool, quiet: bool) -> str:
    """How much of the report has to come back from the child."""
    return "summary" if as_json else "" if quiet else "report"


def _model_files(target: Path, refusal: str) -> dict[str, Path | None]:
    """The files a conversion wrote: a program has its ONNX model beside it, and may have been refused."""
    if target.suffix != ".pt2":
        return {"model": target}
    return {"model": target.with_suffix(".onnx"), "program": None if refusal else target}


def _say(answer: Mapping[str, Any], as_json: bool, quiet: bool, written: Mapping[str, Path | None]) -> None:
    files = {name: str(path) for name, path in written.items() if path is not None}
    if as_json:
        shown = json.loads(answer["shown"])
        print(json.dumps({"exit_status": answer["exit_status"], "verdict": shown["verdict"], "files": files,
                          "outputs": shown["outputs"], "summary": shown["summary"]}))  # fmt: skip
    elif not quiet:
        console = Console()
        console.print(render(json.loads(answer["shown"])))
        for name, path in files.items():
            console.print(f"{name:7} {path}", markup=False, highlight=False, soft_wrap=True)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise EnvironmentFailure(f"'{path}' cannot be written: {error.strerror or error}; check the folder") from error


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _absolute(path: Path | None) -> str | None:
    """Absolute without following links: the child's working folder is another one."""
    return None if path is None else str(Path.cwd() / path)


def _resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose values may be files, with absolute paths."""
    found = dict(options)
    for name in ("policy", "tolerance", "emulate"):
        value = found.get(name)
        named = name == "tolerance" and value not in PRESETS and Path(value or "").is_file()
        if value and (Path(value).suffix or named):
            found[name] = str(Path.cwd() / value)
    if found.get("policy") and not Path(found["policy"]).exists():
        raise OptionError(f"policy file '{options['policy']}' does not exist; check the path")
    return found
