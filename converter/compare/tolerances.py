"""What error is acceptable: presets, tolerance files, and the limit each output gets from the rounding model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from converter.errors import OptionError
from converter.types import ConversionRequest, OutputTolerance, Tolerance

PRESETS: Final[Mapping[str, Tolerance]] = {
    # Six times the expected error: a single rounding is at most 2.4 times its RMS (half an ULP against 0.21 ULP),
    # which leaves a factor of two and a half for what the model does not know.  The ceilings are where a result
    # of the format stops being "as FP32" whatever the depth.
    "fp16-default": Tolerance("fp16-default", factor=6.0, floor=1e-3, ceiling=2e-2),
    "bf16-default": Tolerance("bf16-default", factor=6.0, floor=8e-3, ceiling=5e-2),
    "strict": Tolerance(
        "strict", factor=3.0, floor=5e-4, ceiling=5e-3, default=OutputTolerance(min_top1_agreement=1.0)
    ),
    "loose": Tolerance("loose", factor=20.0, floor=1e-2, ceiling=1e-1),
}


def named_tolerance(name: str | None, to: str) -> Tolerance:
    """A preset by name (None: the format's default), or a tolerance file by path.

    Raises:
        OptionError: no such preset or file, or the file is not what ``docs/policy-files.md`` says.
    """
    if name is None:
        return PRESETS[f"{to}-default"]
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if not path.exists():
        raise OptionError(f"tolerance '{name}' is neither a preset ({', '.join(PRESETS)}) nor a file")
    try:
        content = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise OptionError(f"tolerance file '{name}' is no JSON: {error}") from error
    return parse_tolerance(content, path.name, to)


_OUTPUT_KEYS = tuple(f.name for f in fields(OutputTolerance))


def parse_tolerance(content: Any, origin: str, to: str) -> Tolerance:
    """A tolerance from the JSON object of a tolerance file.

    Raises:
        OptionError: naming the key that is unknown or holds no number.
    """
    if not isinstance(content, dict):
        raise OptionError(f"tolerance file '{origin}' must hold one JSON object")
    known = ("preset", "factor", "floor", "ceiling", "outputs", *_OUTPUT_KEYS)
    unknown = [key for key in content if key not in known]
    if unknown:
        raise OptionError(f"tolerance file '{origin}' has an unknown key '{unknown[0]}'; known are {', '.join(known)}")
    preset = content.get("preset", f"{to}-default")
    base = PRESETS.get(preset) if isinstance(preset, str) else None
    if base is None:
        raise OptionError(f"tolerance file '{origin}' names preset '{preset}'; known are {', '.join(PRESETS)}")
    scale = {key: _number(content, key, origin) for key in ("factor", "floor", "ceiling") if key in content}
    outputs = content.get("outputs", {})
    if not isinstance(outputs, dict) or not all(isinstance(o, dict) for o in outputs.values()):
        raise OptionError(f"tolerance file '{origin}': 'outputs' must map output name patterns to objects")
    return replace(
        base,
        name=origin,
        **scale,
        default=_output_tolerance(content, base.default, origin),
        outputs=tuple((pattern, _output_tolerance(o, OutputTolerance(), origin)) for pattern, o in outputs.items()),
    )


def _output_tolerance(content: Mapping[str, Any], base: OutputTolerance, origin: str) -> OutputTolerance:
    unknown = [k for k in content if k not in (*_OUTPUT_KEYS, "preset", "factor", "floor", "ceiling", "outputs")]
    if unknown:
        raise OptionError(f"tolerance file '{origin}' has an unknown limit '{unknown[0]}'")
    return replace(base, **{key: _number(content, key, origin) for key in _OUTPUT_KEYS if key in content})


def _number(content: Mapping[str, Any], key: str, origin: str) -> float:
    value = content[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
        raise OptionError(f"tolerance file '{origin}': '{key}' must be a number of at least 0 and is {value!r}")
    return float(value)


def allowed_for(
    output: str, expected: float | None, tolerance: Tolerance, request: ConversionRequest
) -> OutputTolerance:
    """The limits of one output: the file's, the command line's, else the rounding model's."""
    limits = tolerance.default
    for pattern, special in tolerance.outputs:
        if fnmatchcase(output, pattern):
            limits = replace(limits, **{k: v for k in _OUTPUT_KEYS if (v := getattr(special, k)) is not None})
    if request.min_sqnr_db is not None and limits.min_sqnr_db is None:
        limits = replace(limits, min_sqnr_db=request.min_sqnr_db)
    if limits.max_rel_l2 is None:
        limits = replace(limits, max_rel_l2=request.max_rel_l2)
    if limits.max_rel_l2 is None and expected is not None:
        derived = min(max(tolerance.factor * expected, tolerance.floor), tolerance.ceiling)
        limits = replace(limits, max_rel_l2=derived)
    return limits
