"""From what a user wrote (option words, file names) to a ``ConversionRequest``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from converter.compare.tolerances import named_tolerance
from converter.errors import OptionError
from converter.formats import NARROW_FORMATS
from converter.numerics.rounding import profile_named
from converter.types import ConversionRequest, EmulationProfile, PolicyOverride

OVERRIDE_KEYS = ("format", "node", "value", "op_type", "inputs_from", "feeds")
FORMAT_WORDS = ("fp32", "fp16", "bf16", "narrow")


def request_from_options(options: Mapping[str, Any]) -> ConversionRequest:
    """Build a request from plain option values (see ``isolation`` for their names).

    Raises:
        OptionError: a file or word among them is wrong.
    """
    to = str(options.get("to", "fp16"))
    known = {name: options[name] for name in _PLAIN if options.get(name) is not None}
    return ConversionRequest(
        to=to,
        overrides=(*keep_patterns(options.get("keep_fp32") or ()), *policy_file(options.get("policy"), to)),
        tolerance=named_tolerance(options["tolerance"], to)
        if options.get("tolerance") and to in NARROW_FORMATS
        else None,
        profile=emulation(options.get("emulate")),
        dynamic=tuple(options.get("dynamic") or ()),
        **known,
    )


_PLAIN = (
    "io_types",
    "overflow",
    "optimise",
    "max_rel_l2",
    "min_sqnr_db",
    "target",
    "provider",
    "search",
    "repair",
    "validate",
    "metrics",
    "seed",
    "headroom",
    "observe_until_stable",
)


def keep_patterns(patterns: Sequence[str]) -> tuple[PolicyOverride, ...]:
    """``--keep-fp32`` patterns: an operator type (``Softmax``), or a shell pattern over node names."""
    return tuple(_keep(pattern) for pattern in patterns)


def _keep(pattern: str) -> PolicyOverride:
    origin = f"--keep-fp32 '{pattern}'"
    if pattern.startswith("op:"):
        return PolicyOverride(op_type=pattern[3:], origin=origin)
    return PolicyOverride(node=pattern, origin=origin)


def policy_file(path: str | None, to: str) -> tuple[PolicyOverride, ...]:
    """The overrides of a policy file, or those that a report's search or repair found.

    Raises:
        OptionError: the file is missing or not what ``docs/policy-files.md`` says.
    """
    if path is None:
        return ()
    try:
        content = json.loads(Path(path).read_text())
    except OSError as error:
        raise OptionError(f"policy file '{path}' cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise OptionError(f"policy file '{path}' is no JSON: {error}") from error
    holder = content.get("policy", content) if isinstance(content, dict) else None
    rules = holder.get("rules") if isinstance(holder, dict) else None
    if not isinstance(rules, list):
        raise OptionError(f"policy file '{path}' must hold an object with a list 'rules', or be a report")
    return tuple(_override(rule, number, Path(path).name, to) for number, rule in enumerate(rules))


def _override(rule: Any, number: int, origin: str, to: str) -> PolicyOverride:
    where = f"policy file '{origin}', rule {number}"
    if not isinstance(rule, dict):
        raise OptionError(f"{where}: a rule is an object with {', '.join(OVERRIDE_KEYS)}")
    unknown = [key for key in rule if key not in (*OVERRIDE_KEYS, "reason")]
    if unknown:
        raise OptionError(f"{where}: unknown key '{unknown[0]}'; known are {', '.join((*OVERRIDE_KEYS, 'reason'))}")
    word = rule.get("format", "fp32")
    if word not in FORMAT_WORDS:
        raise OptionError(f"{where}: format is '{word}'; it takes {', '.join(FORMAT_WORDS)}")
    matches = {key: str(rule[key]) for key in OVERRIDE_KEYS[1:] if key in rule}
    if not matches:
        raise OptionError(f"{where}: it matches nothing; give at least one of {', '.join(OVERRIDE_KEYS[1:])}")
    chosen = "fp32" if word == "fp32" else to
    return PolicyOverride(format=chosen, origin=where, **matches)


def emulation(name: str | None) -> EmulationProfile:
    """An emulation profile by name, or from a JSON file with the fields of ``EmulationProfile``.

    Raises:
        OptionError: no such profile or file, or an unknown field.
    """
    if name is None or not name.endswith(".json"):
        return profile_named(name or "ieee")
    try:
        content = json.loads(Path(name).read_text())
    except OSError as error:
        raise OptionError(f"emulation profile '{name}' cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise OptionError(f"emulation profile '{name}' is no JSON: {error}") from error
    known = ("name", "overflow", "flush_subnormals", "narrow_accumulate")
    unknown = [k for k in content if k not in known] if isinstance(content, dict) else ["?"]
    if unknown:
        raise OptionError(f"emulation profile '{name}' has an unknown key '{unknown[0]}'; known are {', '.join(known)}")
    if content.get("overflow", "inf") not in ("inf", "saturate"):
        raise OptionError(f"emulation profile '{name}': overflow is '{content['overflow']}'; it takes inf or saturate")
    for key, kind, word in (("name", str, "a text"), *((k, bool, "true or false") for k in known[2:])):
        if key in content and not isinstance(content[key], kind):
            raise OptionError(f"emulation profile '{name}': {key} is {json.dumps(content[key])}; it takes {word}")
    return EmulationProfile(**{"name": Path(name).stem} | content)


CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "to": tuple(NARROW_FORMATS),
    "io_types": ("keep", "narrow"),
    "overflow": ("clamp", "widen"),
    "optimise": ("size", "speed"),
    "metrics": ("core", "all"),
}
"""Options that take one of a few words."""


def check_words(request: ConversionRequest) -> None:
    """Check options that take one of a few words.

    Raises:
        OptionError: naming the option and what it takes.
    """
    for name, allowed in CHOICES.items():
        given = getattr(request, name)
        if given not in allowed:
            raise OptionError(f"option {name} is '{given}'; it takes {' or '.join(allowed)}")


def check_request(request: ConversionRequest, has_samples: bool) -> None:
    """Check options one by one and against each other.

    Raises:
        OptionError: naming the option and what it takes.
    """
    check_words(request)
    if request.validate and not has_samples:
        raise OptionError("no sample batch was given: pass --samples FILE.npz, or --no-validate to convert unchecked")
    if request.search and not request.validate:
        raise OptionError("--search measures errors and needs validation; leave out --no-validate")
    if request.provider != "none" and not request.validate:
        raise OptionError("--provider compares with FP32 and needs validation; leave out --no-validate")
    for name in ("max_rel_l2", "min_sqnr_db"):
        limit = getattr(request, name)
        if limit is not None and not math.isfinite(limit):
            raise OptionError(f"option {name} is {limit}; it takes a finite number")
    if not request.headroom >= 1:
        raise OptionError(f"headroom is {request.headroom}; it must be at least 1")
