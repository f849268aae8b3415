"""Why an export failed, in the exporter's own words and with what to change."""

from __future__ import annotations

import re
from collections.abc import Iterator

from converter.errors import ModelError
from converter.source_lines import short_path

QUOTED = 500
"""Characters of a reason that a message quotes."""


class ExportFailed(ModelError):
    """The program cannot be traced to ONNX."""

    code = "EXPORT_FAILED"


_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_NOISE = ("For more information, run with TORCH_LOGS", "For extended logs", "If you suspect the guard", "For C++ stack",
          "For more debugging help", "The error above occurred", "Use tlparse", "consider using data-dependent",
          "Caused by: (", "(Refer to the full stack", "To fix the error, insert")  # fmt: skip
_ADVICE = (
    (("quantized::", "quantized.", "quantized op", "fake_quantize", "quantize_per"),
     "the program is quantised already: give the FP32 program that it was made from"),
    (("data-dependent", "datadependent", "dynamic control flow", "tracing tensor"),
     "its control flow depends on the values of a tensor: write it with torch.where or torch.cond, or save the module "
     "with torch.jit.script, which keeps branches"),
    (("constraints violated", "specialized it to be a constant", "not all values of"),
     "the program works for one size of that axis only: leave that --dynamic out, or take sizes from tensor.shape"),
    (("in-place", "inplace", "mutat", "functionaliz", "a view of a leaf"),
     "it changes a tensor in place where that cannot be undone: write the result to a new tensor"),
    ((".numpy() is not supported", "faketensor", "tensor subclasses"),
     "it leaves PyTorch on the way (NumPy or Python numbers): keep the whole computation in tensors"),
    (("scriptmodule", "scriptfunction"),
     "save the module with torch.export.save, or save the scripted module with torch.jit.save"),
    (("no onnx function found", "unsupportedoperator", "is not supported"),
     "that operator has no ONNX form: replace it, or raise the opset by exporting the model yourself"),
)  # fmt: skip


def failed(error: BaseException, what: str) -> ExportFailed:
    """The error to raise for a failed export; ``what`` says which step failed."""
    text = reason(error)
    advice = advice_for(f"{text} {error}")
    return ExportFailed(f"{what} failed: {text}" + (f"; {advice}" if advice else ""))


def advice_for(text: str) -> str:
    """What to change, where a reason is a known one; empty where it is not."""
    return next((say for words, say in _ADVICE if any(word in text.lower() for word in words)), "")


def reason(error: BaseException) -> str:
    """The innermost reason, without advice for people who debug PyTorch, and the line of the program it names."""
    innermost = list(chain(error))[-1]
    text = _ANSI.sub("", str(innermost)).strip()
    if " " not in text:  # a bare name: of a key, of an operator
        text = f"{type(innermost).__name__}: {text}" if text else type(innermost).__name__
    said = " ".join(line.strip() for line in _telling(text))
    where = _place("\n".join(_ANSI.sub("", str(e)) for e in chain(error)))
    said = said if len(said) <= QUOTED else f"{said[:QUOTED]}…"
    return f"{said} ({where})" if where and where not in said else said


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def _telling(text: str) -> list[str]:
    """The lines up to the first stack trace or dump, without the noise; of a TorchScript failure the last one."""
    if "TorchScript interpreter" in text:
        return [line.partition("Error: ")[2] or line for line in text.strip().splitlines()[-1:]]
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith(("The following call raised", "Original traceback", "Traceback", "graph(")):
            break
        if line.strip() and not line.lstrip().startswith(_NOISE):
            kept.append(line)
    return kept or text.splitlines()[:1]


def _place(text: str) -> str:
    """The last line of the user's program that an error names."""
    frames = [(short_path(path), line, function) for path, line, function in _FRAME.findall(text)]
    own = [frame for frame in frames if not frame[0].startswith(("torch/", "<"))]
    return "{}:{} in {}".format(*own[-1]) if own else ""
