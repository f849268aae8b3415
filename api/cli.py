"""The ``narrowcast`` command: knows every command's name and first line, and imports one only to run it.

So ``narrowcast convert`` does not load the service, ``narrowcast serve`` does not load the engine, and
``--help`` loads neither.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command as click_command

from converter import __version__
from converter.errors import EnvironmentFailure, NarrowcastError

SERVICE_PACKAGES: Final = frozenset(
    {"alembic", "anyio", "celery", "fastapi", "httptools", "httpx2", "kombu", "prometheus_client", "pydantic",
     "pydantic_settings", "python_multipart", "redis", "sqlalchemy", "starlette", "uvicorn", "uvloop"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command lives, and its line in the list of commands."""

    module: str
    group: str
    summary: str


_ENGINE: Final = ("converter.cli", "Convert and look into models")
_CLIENT: Final = ("api.commands.client", "Use a service")
_SERVER: Final = ("api.commands.server", "Run a service")
COMMANDS: Final[dict[str, Entry]] = {
    "convert": Entry(*_ENGINE, "convert a model and prove it on a sample batch"),
    "validate": Entry(*_ENGINE, "compare any two models layer by layer"),
    "inspect": Entry(*_ENGINE, "ranges, sensitive nodes, what would be converted and why"),
    "report": Entry(*_ENGINE, "views of a report: HTML, CSV, JUnit, Markdown"),
    "formats": Entry(*_ENGINE, "FP32, TF32, FP16, BF16 side by side"),
    "serve": Entry(*_SERVER, "API, worker and broker in one command"),
    "serve-api": Entry(*_SERVER, "the API alone"),
    "serve-worker": Entry(*_SERVER, "a worker alone"),
    "serve-sweeper": Entry(*_SERVER, "the sweeper alone, where the API does not sweep"),
    "submit": Entry(*_CLIENT, "send models and batches, start conversions"),
    "jobs": Entry(*_CLIENT, "list jobs, or show one"),
    "wait": Entry(*_CLIENT, "wait for jobs to end"),
    "download": Entry(*_CLIENT, "fetch a finished job's files"),
    "cancel": Entry(*_CLIENT, "stop a job"),
}


class LazyGroup(TyperGroup):
    """Commands by name, imported when one is run or asked for its own help."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - given by the base class
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            close = get_close_matches(cmd_name, COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else " See `narrowcast --help`."
            ctx.fail(f"There is no command {cmd_name!r}.{hint}")
        return load_command(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - given by the base class
        formatter.write("Usage: narrowcast COMMAND [OPTIONS] …\n\n")
        formatter.write("FP32 models to mixed FP16/BF16 ones, proved on a sample batch.\n")
        width = max(map(len, COMMANDS))
        group = ""
        for name, entry in COMMANDS.items():
            if entry.group != group:
                group = entry.group
                formatter.write(f"\n{group}:\n")
            formatter.write(f"  {name:<{width}}  {entry.summary}\n")
        formatter.write("\n`narrowcast COMMAND --help` shows a command's options; --version this program's.\n")


def load_command(name: str) -> Any:
    """The command, with its module imported.

    Raises:
        EnvironmentFailure: the packages of the service are not installed.
    """
    module = COMMANDS[name].module
    try:
        app = importlib.import_module(module).app
    except ModuleNotFoundError as error:
        _raise_if_of_the_service(error, name)
        raise
    return click_command(app).get_command(None, name)  # type: ignore[attr-defined]


def _raise_if_of_the_service(error: ModuleNotFoundError, command: str) -> None:
    if (error.name or "").split(".")[0] in SERVICE_PACKAGES:
        raise EnvironmentFailure(
            f"`narrowcast {command}` needs the package {error.name}; install the service with "
            "`pip install 'narrowcast[service]'`, or from a clone `pip install -c constraints.txt -e '.[service]'`"
        ) from error


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"narrowcast {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="show the version"),
) -> None:
    """FP32 models to mixed FP16/BF16 ones, proved on a sample batch."""


def make_group() -> Any:
    """The command line as one group."""
    app = typer.Typer(cls=LazyGroup, pretty_exceptions_enable=False)
    app.callback()(_root)
    return click_command(app)


def main() -> None:
    """Run the command line; a bug ends in 3, never in 1, which means "converted, verdict fail"."""
    try:
        group = make_group()
        if len(sys.argv) < 2:
            print(group.get_help(group.context_class(group, info_name="narrowcast")), file=sys.stderr)
            sys.exit(2)
        try:
            group.main(prog_name="narrowcast")
        except ModuleNotFoundError as error:  # a command imports what it needs when it runs
            _raise_if_of_the_service(error, sys.argv[1])
            raise
    except NarrowcastError as error:
        print(f"narrowcast: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        print("narrowcast: this is a bug; please report it with the lines above", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
