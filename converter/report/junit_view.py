"""The verdict as JUnit XML, so that a build server shows it beside its tests.

A failure stands exactly where a limit was broken, and the suite has one exactly when the verdict is ``fail``:
it agrees with the exit status.  A layer that is abnormal but broke no limit is ``skipped``, with its figures.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable

from converter.report import digest, wording
from converter.report.records import Object

NAME_LIMIT = 500
MESSAGE_LIMIT = 2000


def to_junit(report: Object) -> bytes:
    """One test suite: a case for the verdict, one per output, one per layer that is abnormal or over a limit."""
    cases = [_verdict_case(report), *_output_cases(report), *_layer_cases(report)]
    seconds = sum(value for value in report["timings"].values() if value is not None)
    suite = ET.Element(
        "testsuite",
        name=_text(f"narrowcast {report['model']['name']} {report['request']['to']}", NAME_LIMIT),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors="0",
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        time=f"{seconds:.3f}",
    )
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _verdict_case(report: Object) -> ET.Element:
    status, said = report["verdict"]["status"], digest.diagnosis(report)
    case = _case("verdict", "verdict", said)
    if status == "fail":
        _fail(case, report["verdict"]["reasons"], said)
    elif status == "unchecked":
        _skip(case, said)
    return case


def _output_cases(report: Object) -> Iterable[ET.Element]:
    broken = digest.reasons_by(report, "output")
    for output in report["outputs"]:
        case = _case("outputs", output["value"], _figures(output))
        if output["value"] in broken:
            _fail(case, broken[output["value"]])
        elif output["status"] == "unchecked":
            _skip(case, "not compared")
        yield case


def _layer_cases(report: Object) -> Iterable[ET.Element]:
    broken = digest.reasons_by(report, "layer")
    for layer in report["layers"]:
        reasons = broken.get(layer["value"]) or broken.get(layer["node"])
        if not reasons and layer["status"] != "abnormal":
            continue
        case = _case("layers", layer["node"] or layer["value"], _figures(layer))
        if reasons:
            _fail(case, reasons)
        else:
            _skip(case, f"abnormal, no limit broken: {digest.cause(layer)}")
        yield case


def _case(group: str, name: str, said: str) -> ET.Element:
    case = ET.Element("testcase", classname=f"narrowcast.{group}", name=_text(name, NAME_LIMIT))
    ET.SubElement(case, "system-out").text = _text(said)
    return case


def _fail(case: ET.Element, reasons: list[Object], said: str = "") -> None:
    lines = [_text(digest.reason_text(reason)) for reason in reasons] or [said]
    failure = ET.Element("failure", message=lines[0], type="tolerance")
    failure.text = "\n".join(lines)
    case.insert(0, failure)


def _skip(case: ET.Element, why: str) -> None:
    case.insert(0, ET.Element("skipped", message=_text(why)))


def _figures(entry: Object) -> str:
    return (
        f"rel_l2_error={wording.figure(entry['rel_l2_error'])} expected={wording.figure(entry['expected_rel_l2'])} "
        f"max_abs_error={wording.figure(entry['max_abs_error'])} sqnr_db={wording.fixed(entry['sqnr_db'], 1)} "
        f"misplaced_nonfinite={wording.count(entry['misplaced_nonfinite'])}"
    )


def _text(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Printable text holds none of the characters that XML 1.0 cannot hold, not even escaped."""
    return wording.printable(text, limit)
