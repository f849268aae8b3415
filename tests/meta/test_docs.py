"""Documents against the program: links lead somewhere, options that are named exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from api.cli import COMMANDS
from converter.cli import app
from converter.compare.tolerances import PRESETS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
ENGINE = get_command(app).commands  # type: ignore[attr-defined]


def options(command: str) -> set[str]:
    found = {"--help", "--version"}
    for parameter in ENGINE[command].params:
        found.update(o for o in (*parameter.opts, *parameter.secondary_opts) if o.startswith("--"))
    return found


@each_document
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@each_document
def test_options_that_are_named_with_a_command_exist(path: Path) -> None:
    for command, rest in re.findall(r"narrowcast (\w+)([^\n`#]*)", path.read_text()):
        if command in ENGINE:
            unknown = set(re.findall(r"(?<![\w-])--[a-z0-9-]+", rest)) - options(command)
            assert not unknown, f"{path.name} names {sorted(unknown)} for {command}"


def test_options_that_the_readme_names_alone_are_converts() -> None:
    """In the paragraph on exit status and options, outside code blocks."""
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    named = set(re.findall(r"`(--[a-z0-9-]+)", text))
    assert named
    assert named <= options("convert") | {"--help"}


def test_the_contract_of_convert_is_there() -> None:
    """The command line that scripts rely on (``product.md``)."""
    wanted = {
        "--samples", "--to", "--output", "--report", "--html", "--junit", "--io-types", "--overflow", "--optimise",
        "--keep-fp32", "--policy", "--tolerance", "--max-rel-l2", "--min-sqnr-db", "--target", "--provider",
        "--emulate", "--search", "--no-repair", "--no-validate", "--dynamic", "--seed", "--json", "--quiet",
    }  # fmt: skip
    assert wanted <= options("convert")
    assert {"--samples"} <= options("validate") & options("inspect")
    assert "--format" in options("report")


def test_every_command_of_the_engine_is_listed_and_lives_where_it_says() -> None:
    listed = {name for name, entry in COMMANDS.items() if entry.module == "converter.cli"}
    assert listed == set(ENGINE)


@pytest.mark.parametrize("command", sorted(ENGINE))
def test_every_option_says_what_it_does(command: str) -> None:
    for parameter in ENGINE[command].params:
        if parameter.name != "help":
            assert parameter.help, f"{command} {parameter.name}"


def test_presets_are_documented() -> None:
    text = (ROOT / "docs" / "policy-files.md").read_text()
    for name in PRESETS:
        assert f"`{name}`" in text
