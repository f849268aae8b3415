"""``submit``, ``jobs``, ``wait``, ``download``, ``cancel``: a service from the command line.

NARROWCAST_URL and NARROWCAST_API_KEY say which one, and who we are.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from api.client import Client, Job, RequestRefused, WaitTimedOut
from api.commands.output import Progressing, clean, print_cases, print_jobs, print_json, say, worst, write_junit
from api.commands.submission import Choices, Submission
from converter.errors import OptionError

app = typer.Typer(pretty_exceptions_enable=False)

AsJson = Annotated[bool, typer.Option("--json", help="exactly one JSON object on stdout")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress, no notes")]
Timeout = Annotated[float | None, typer.Option(min=0, help="seconds to wait; then exit 5, the job goes on")]


@contextlib.contextmanager
def _client() -> Iterator[Client]:
    with Client() as client:
        yield client


@app.command("submit")
def submit(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="models to convert")],
    samples: Annotated[list[Path] | None, typer.Option(help="a batch, or a folder of batches; for every model")] = None,
    to: Annotated[str, typer.Option(help="fp16 or bf16")] = "fp16",
    output: Annotated[Path | None, typer.Option(help="converted model; a folder for several")] = None,
    report: Annotated[Path | None, typer.Option(help="JSON report; a folder for several")] = None,
    html: Annotated[Path | None, typer.Option(help="HTML report; a folder for several")] = None,
    junit: Annotated[Path | None, typer.Option(help="one JUnit file over all models")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="wait for the end; implied by the options that fetch")] = False,
    timeout: Timeout = None,
    io_types: Annotated[str, typer.Option(help="keep or narrow")] = "keep",
    overflow: Annotated[str, typer.Option(help="clamp or widen")] = "clamp",
    optimise: Annotated[str, typer.Option(help="size or speed")] = "size",
    keep_fp32: Annotated[list[str] | None, typer.Option(help="pattern of nodes or values to keep")] = None,
    policy: Annotated[Path | None, typer.Option(help="policy file")] = None,
    tolerance: Annotated[str | None, typer.Option(help="a preset's name, or a file")] = None,
    max_rel_l2: Annotated[float | None, typer.Option()] = None,
    min_sqnr_db: Annotated[float | None, typer.Option()] = None,
    target: Annotated[str, typer.Option()] = "any",
    provider: Annotated[str, typer.Option()] = "none",
    emulate: Annotated[str, typer.Option()] = "ieee",
    search: Annotated[bool, typer.Option("--search")] = False,
    no_repair: Annotated[bool, typer.Option("--no-repair")] = False,
    no_validate: Annotated[bool, typer.Option("--no-validate")] = False,
    dynamic: Annotated[list[str] | None, typer.Option(help="INPUT:AXIS")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or npu")] = "cpu",
    deadline: Annotated[float | None, typer.Option(min=1, help="run time in seconds")] = None,
    reuse: Annotated[bool, typer.Option("--reuse", help="an equal finished job will do")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Send models and batches and convert them on a service.

    With several models: one table at the end, and the worst exit status in the order 3, 4, 5, 6, 2, 1, 0.
    """
    options = {
        "to": to, "io_types": io_types, "overflow": overflow, "optimise": optimise, "keep_fp32": keep_fp32 or [],
        "max_rel_l2": max_rel_l2, "min_sqnr_db": min_sqnr_db, "target": target, "provider": provider,
        "emulate": emulate, "search": search, "repair": not no_repair, "validate": not no_validate,
        "dynamic": dynamic or [], "seed": seed,
    }  # fmt: skip
    fields = {"labels": _labels(label or []), "device": device, "reuse": "allow" if reuse else "never",
              "deadline_s": deadline}  # fmt: skip
    choices = Choices(
        models=models, samples=samples or [], options=options, fields=fields, policy=policy, tolerance=tolerance,
        output=output, report=report, html=html, junit=junit, timeout_s=timeout, quiet=quiet,
        wait=wait or any((output, report, html, junit)),
    )  # fmt: skip
    with _client() as client:
        submission = Submission(client, choices)
        status = _interruptible(submission, quiet=quiet)
    if junit is not None:
        write_junit(submission.cases, junit)
    _print_submission(submission, as_json=as_json)
    raise typer.Exit(status)


def _interruptible(submission: Submission, *, quiet: bool) -> int:
    try:
        with Progressing(quiet=quiet) as progress:
            return submission.run(progress)
    except KeyboardInterrupt:
        ids = " ".join(one.job.id for one in submission.entries if one.job is not None and not one.job.ended)
        if ids:
            print(f"the jobs go on; `narrowcast wait {ids}` to follow, `narrowcast cancel {ids}` to stop",
                  file=sys.stderr)  # fmt: skip
        else:
            print("nothing was started; the same command resumes the upload", file=sys.stderr)
        raise typer.Exit(130) from None


def _print_submission(submission: Submission, *, as_json: bool) -> None:
    if as_json:
        print_json({"jobs": [one.to_json() for one in submission.entries], "exit_status": submission.status})
        return
    print_cases(submission.cases)
    for one in submission.entries:
        if one.error:
            print(clean(f"narrowcast: {one.model}: {one.error}"), file=sys.stderr)


def _labels(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--label {text!r} is not NAME=VALUE")
        found[name] = value
    return found


@app.command("jobs")
def jobs(
    job: Annotated[str | None, typer.Argument(help="show this one")] = None,
    state: Annotated[str | None, typer.Option(help="QUEUED, RUNNING, SUCCEEDED, …")] = None,
    verdict: Annotated[str | None, typer.Option(help="pass, fail or unchecked")] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 50,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first, or show one."""
    with _client() as client:
        if job is not None:
            found = [client.job(job)]
        else:
            found = list(client.jobs(state=state, verdict=verdict, label=label, page_size=limit).items)
    if as_json:
        print_json(found[0].raw if job is not None else {"jobs": [one.raw for one in found]})
    else:
        print_jobs(found)


@app.command("wait")
def wait(
    job: Annotated[list[str], typer.Argument(metavar="JOB...")],
    timeout: Timeout = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Wait for jobs to end; the exit status says how they did."""
    found: list[Job] = []
    statuses = []
    try:
        with _client() as client, Progressing(quiet=quiet) as progress:
            for name in job:
                try:
                    found.append(client.wait(name, timeout, progress.job))
                    statuses.append(found[-1].exit_status)
                except WaitTimedOut as error:
                    say(f"narrowcast: {error}", quiet=quiet)
                    found += [error.job] if error.job is not None else []
                    statuses.append(error.exit_status)
    except KeyboardInterrupt:
        names = " ".join(job)
        print(f"the jobs go on; `narrowcast wait {names}` to follow, `narrowcast cancel {names}` to stop",
              file=sys.stderr)  # fmt: skip
        raise typer.Exit(130) from None
    if as_json:
        print_json({"jobs": [one.raw for one in found], "exit_status": worst(statuses)})
    else:
        print_jobs(found)
    raise typer.Exit(worst(statuses))


@app.command("download")
def download(
    job: Annotated[str, typer.Argument(metavar="JOB")],
    output: Annotated[Path, typer.Option("--output", "-o", help="folder to write to")] = Path(),
    role: Annotated[list[str] | None, typer.Option(help="model, data, report, html, csv, junit, …")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fetch a finished job's files: resumed where a broken download stopped, verified, renamed when whole."""
    with _client() as client, Progressing(quiet=quiet) as progress:
        found = client.job(job)
        if not found.ended:
            raise WaitTimedOut(f"job {job} is {found.state}; `narrowcast wait {job}` first", found)
        found.raise_for_state()
        paths = client.download(job, output, role or [], progress.bytes)
    if as_json:
        print_json({"files": [str(one) for one in paths]})
    else:
        for one in paths:
            print(one)


@app.command("cancel")
def cancel(
    job: Annotated[list[str], typer.Argument(metavar="JOB...")],
    as_json: AsJson = False,
) -> None:
    """Stop jobs."""
    found: list[Job] = []
    statuses = [0]
    errors: list[dict[str, Any]] = []
    with _client() as client:
        for name in job:
            try:
                found.append(client.cancel(name))
            except RequestRefused as error:
                if error.exit_status == 4:
                    raise
                statuses.append(error.exit_status)
                errors.append({"job": name, "error": str(error)})
                say(f"narrowcast: {name}: {error}")
    if as_json:
        print_json({"jobs": [one.raw for one in found], "errors": errors})
    else:
        print_jobs(found)
    raise typer.Exit(worst(statuses))
