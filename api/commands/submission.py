"""Many models through a service: send and start each, follow all, fetch what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from api.client import Client, Job
from api.commands.output import Case, Progressing, say, worst
from converter.errors import NarrowcastError, OptionError

PRESETS: Final = ("fp16-default", "bf16-default", "strict", "loose")


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line asks for."""

    models: Sequence[Path]
    samples: Sequence[Path]
    options: Mapping[str, Any]
    fields: Mapping[str, Any]
    policy: Path | None
    tolerance: str | None
    output: Path | None
    report: Path | None
    html: Path | None
    junit: Path | None
    timeout_s: float | None
    quiet: bool
    wait: bool


@dataclass
class Entry:
    """One model on its way; ``status`` is what it alone would make the command exit with."""

    model: Path
    job: Job | None = None
    error: str = ""
    status: int = 0
    files: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "model": str(self.model),
            "job": None if self.job is None else dict(self.job.raw),
            "error": self.error or None,
            "exit_status": self.status,
            "files": self.files,
        }


class Submission:
    """The models of one command."""

    def __init__(self, client: Client, choices: Choices) -> None:
        self._client = client
        self._choices = choices
        self.entries = [Entry(one) for one in choices.models]
        self._check()

    @property
    def status(self) -> int:
        return worst([one.status for one in self.entries])

    @property
    def cases(self) -> list[Case]:
        return [Case(one.model.name, one.job, one.error) for one in self.entries]

    def run(self, progress: Progressing) -> int:
        """Do it all; trouble with one model does not stop the others, a service that is gone does."""
        inputs = self._client.create_inputs(self._choices.samples, progress.bytes)
        options = self._options()
        for entry in self.entries:
            self._guarded(entry, lambda one: self._start(one, inputs, options, progress))
        if self._choices.wait:
            for entry in self.entries:
                if entry.job is not None:
                    self._guarded(entry, lambda one: self._finish(one, progress))
        return self.status

    def _check(self) -> None:
        """Raises OptionError for what can be known before anything is sent."""
        if not self._choices.samples and self._choices.options["validate"]:
            raise OptionError("give --samples BATCH.npz, or --no-validate")
        output = self._choices.output
        if output is not None and output.suffix == ".pt2":
            raise OptionError(
                f"--output {output.name} asks for a PyTorch program, and the service makes ONNX models; give a name in "
                ".onnx, or use `narrowcast convert`"
            )
        for path in (self._choices.output, self._choices.report, self._choices.html):
            if path is not None and len(self.entries) > 1:
                self._check_folder(path)
        for path in (self._choices.output, self._choices.report, self._choices.html, self._choices.junit):
            if path is not None and path.exists() and not (path.is_file() or path.is_dir()):
                raise OptionError(f"{path} is no file: what is written there takes its place; name a file")

    def _check_folder(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise OptionError(f"{path} is a file; several models need a folder")
        if twice := _twice([one.stem for one in self._choices.models]):
            raise OptionError(
                f"two of the models are called {twice!r}: in the folder {path} one would replace the other"
            )

    def _options(self) -> dict[str, Any]:
        options = dict(self._choices.options)
        if self._choices.policy is not None:
            options["policy"] = self._client.option_file(self._choices.policy)
        tolerance = self._choices.tolerance
        if tolerance is not None:
            known = tolerance in PRESETS
            options["tolerance"] = tolerance if known else self._client.option_file(_existing(Path(tolerance)))
        return options

    def _guarded(self, entry: Entry, act: Callable[[Entry], None]) -> None:
        try:
            act(entry)
        except NarrowcastError as error:
            entry.error = str(error)
            entry.status = error.exit_status
            if len(self.entries) == 1 and entry.job is None:
                raise

    def _start(self, entry: Entry, inputs: list[str], options: dict[str, Any], progress: Progressing) -> None:
        entry.job = self._client.submit(
            entry.model, inputs, options=options, on_bytes=progress.bytes, name=entry.model.name,
            **{name: value for name, value in self._choices.fields.items() if value is not None},
        )  # fmt: skip
        say(f"{entry.model.name}: job {entry.job.id}", quiet=self._choices.quiet)

    def _finish(self, entry: Entry, progress: Progressing) -> None:
        assert entry.job is not None
        entry.job = self._client.wait(entry.job.id, self._choices.timeout_s, progress.job)
        entry.status = entry.job.exit_status
        if entry.job.state != "SUCCEEDED":
            entry.error = entry.job.reason
            return
        views = (("report", ".json", self._choices.report), ("html", ".html", self._choices.html))
        for role, suffix, wanted in views:
            if wanted is not None:
                self._fetch(entry, role, self._place(wanted, entry, suffix), progress)
        if self._choices.output is not None:
            self._fetch_model(entry, self._choices.output, progress)

    def _place(self, wanted: Path, entry: Entry, suffix: str) -> Path:
        """The file meant by a path that is a file for one model and a folder for several."""
        if len(self.entries) > 1 or wanted.is_dir():
            return wanted / f"{entry.model.stem}{suffix}"
        return wanted

    def _fetch(self, entry: Entry, role: str, target: Path, progress: Progressing) -> None:
        assert entry.job is not None
        files = [one for one in self._client.artifacts(entry.job.id) if one.role == role]
        for one in files:
            self._client.download_file(entry.job.id, one, target, progress.bytes)
            entry.files.append(str(target))

    def _fetch_model(self, entry: Entry, wanted: Path, progress: Progressing) -> None:
        """The data file first and under its own name, which the model holds; the model last."""
        assert entry.job is not None
        files = self._client.artifacts(entry.job.id)
        model = next(one for one in files if one.role == "model")
        target = self._place(wanted, entry, model.name.removeprefix(entry.model.stem))
        for one in files:
            if one.role == "data":
                self._client.download_file(entry.job.id, one, target.parent / one.name, progress.bytes)
                entry.files.append(str(target.parent / one.name))
        self._client.download_file(entry.job.id, model, target, progress.bytes)
        entry.files.append(str(target))


def _twice(names: Sequence[str]) -> str:
    """A name that occurs more than once; empty when none does."""
    return next((name for number, name in enumerate(names) if name in names[:number]), "")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise OptionError(f"--tolerance {str(path)!r} is neither a file nor one of {', '.join(PRESETS)}")
    return path
