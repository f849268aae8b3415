"""The small schema checker agrees with a full one on the one schema it is for."""

from __future__ import annotations

import copy
import json
import random

import jsonschema
import pytest

from converter.report.conform import CHECKED_KEYWORDS, SILENT_KEYWORDS, departure, report_schema
from converter.report.json_view import to_json
from tests.report import examples

JUNK = [None, True, -3, 2, 0.5, "text", [], {}, [3], {"a": 1}]


def keywords(node):
    if isinstance(node, dict):
        for name, part in node.items():
            yield name
            if name in ("properties", "patternProperties", "$defs"):
                for inner in part.values():
                    yield from keywords(inner)
            elif name not in ("enum", "required"):
                yield from keywords(part)
    elif isinstance(node, list):
        for part in node:
            yield from keywords(part)


def test_the_schema_uses_only_keywords_that_are_known_here():
    assert set(keywords(report_schema())) <= CHECKED_KEYWORDS | SILENT_KEYWORDS


def test_every_definition_is_used():
    text = json.dumps(report_schema())
    unused = [name for name in report_schema()["$defs"] if f'"#/$defs/{name}"' not in text]
    assert unused == []


def test_every_object_but_timings_is_closed():
    open_objects = []

    def walk(node, path):
        if isinstance(node, dict):
            if node.get("type") == "object" and node.get("additionalProperties") is not False:
                open_objects.append(path)
            for name, part in node.items():
                walk(part, f"{path}/{name}")

    walk(report_schema(), "")
    assert open_objects == ["/properties/timings"]


def spots(value, path=()):
    """Every place inside a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from spots(part, (*path, key))


@pytest.mark.parametrize("seed", range(300))
def test_agrees_with_a_full_validator_on_damaged_reports(seed):
    source = random.Random(seed)
    content = copy.deepcopy(SMALL)
    *where, last = source.choice(SPOTS)
    place = content
    for key in where:
        place = place[key]
    if source.random() < 0.3:
        del place[last]
    else:
        place[last] = source.choice(JUNK)
    full = VALIDATOR.is_valid(content)
    assert (departure(content, report_schema()) is None) == full


def without_closing(node):
    """The schema as readers apply it: unknown keys are allowed."""
    if isinstance(node, dict):
        return {name: without_closing(part) for name, part in node.items() if part is not False}
    return [without_closing(part) for part in node] if isinstance(node, list) else node


SMALL = json.loads(to_json(examples.failing()))
SMALL["layers"] = SMALL["layers"][7:9]
SMALL["decisions"] = SMALL["decisions"][7:9]
SPOTS = [spot for spot in spots(SMALL) if spot and spot[0] not in ("timings", "schema_version")]
VALIDATOR = jsonschema.Draft202012Validator(without_closing(report_schema()))


def test_names_the_place_and_the_fault():
    damaged = copy.deepcopy(SMALL)
    damaged["layers"][1]["local"]["count"] = "many"
    assert departure(damaged, report_schema()) == 'layers[1].local.count is "many" and should be null or integer'


def test_says_it_for_the_whole():
    assert departure([], report_schema()) == "it is [] and should be object"
