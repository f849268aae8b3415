"""Reading program files.  Called in the isolated child process only: TorchScript and ``.pt2`` files run code."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from converter.errors import ModelError
from converter.source.detect import SourceKind, read_config
from converter.source.torch_program import require_transformers
from converter.source.torch_program.export import quiet
from converter.source.torch_program.reasons import reason

MODULE = "nn.Module"


@dataclass
class Program:
    """A program in memory: ``module`` (a ScriptModule too), or ``exported``.

    ``reload`` reads it again, for programs that change when they run; ``mode`` says in which mode it will be traced.
    """

    kind: str
    label: str
    mode: str
    module: torch.nn.Module | None = None
    exported: ExportedProgram | None = None
    reload: Callable[[], Program] | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)


def load_program(path: Path, kind: SourceKind) -> Program:
    """Read a program in FP32, on the CPU.

    Raises:
        ModelError: it cannot be loaded; the message quotes PyTorch's reason.
        PackageMissing: a folder needs transformers.
    """
    readers = {
        SourceKind.TORCHSCRIPT: _torchscript,
        SourceKind.EXPORTED_PROGRAM: _exported,
        SourceKind.FOLDER: _folder,
    }
    program = readers[kind](path)
    if kind is not SourceKind.FOLDER:
        program.reload = lambda: readers[kind](path)
    return program


def _torchscript(path: Path) -> Program:
    try:
        module = torch.jit.load(str(path), map_location="cpu")
    except Exception as error:
        raise _unreadable(path, error) from error
    _check_script(module)
    mode = _to_eval(module)
    return Program(SourceKind.TORCHSCRIPT.value, module.original_name or "ScriptModule", mode, module=module)


def _check_script(module: torch.jit.ScriptModule) -> None:
    _check_precision(module.parameters())
    if not hasattr(module, "forward"):
        raise ModelError("the TorchScript module has no method 'forward', which is what is converted; give it one")


def _to_eval(module: torch.nn.Module) -> str:
    """Put a module into eval mode; what was done, in words."""
    training = [name or "the module" for name, part in module.named_modules() if getattr(part, "training", False)]
    if not training:
        return "eval mode, as given"
    module.eval()
    return f"eval mode: eval() was called, the program was saved in training mode ({len(training)} modules)"


def _exported(path: Path) -> Program:
    try:
        with quiet():
            _import_result_classes(path)
            program = torch.export.load(str(path))
    except Exception as error:
        raise _unreadable(path, error) from error
    return from_exported(program)


_RESULT_CLASS = re.compile(rb"transformers(?:\.\w+)+(?=\.[A-Z]\w*)")
"""The module of a class that transformers registers for results, as a program's structure names it."""


def _import_result_classes(path: Path) -> None:
    """Results of transformers' classes can be read when the installed library has registered them."""
    with zipfile.ZipFile(path) as archive:
        graphs = [archive.read(name) for name in archive.namelist() if name.endswith(".json")]
    modules = {found.decode() for graph in graphs for found in _RESULT_CLASS.findall(graph)}
    if modules:
        require_transformers()
    for module in sorted(modules):
        with contextlib.suppress(ImportError):  # loading will say what is missing
            importlib.import_module(module)


def from_exported(program: ExportedProgram) -> Program:
    """An ExportedProgram as it is: its graph was fixed when it was exported."""
    _check_precision(program.parameters())
    devices = {t.device.type for t in (*program.state_dict.values(), *program.constants.values())
               if isinstance(t, torch.Tensor)}  # fmt: skip
    if devices - {"cpu"}:
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, "cpu")
    mode = "as it was exported (training branches, if any, are fixed in its graph)"
    return Program(SourceKind.EXPORTED_PROGRAM.value, "ExportedProgram", mode, exported=program)


def _folder(path: Path) -> Program:
    """A folder as ``save_pretrained`` writes it: a class of transformers itself, weights from safetensors."""
    require_transformers()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    import transformers

    names = read_config(path / "config.json").get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "AutoModel"
    kind: Any = getattr(transformers, name, None)
    if not hasattr(kind, "from_pretrained"):
        raise ModelError(
            f"the config.json of folder '{path.name}' asks for the class '{name}', which transformers "
            f"{transformers.__version__} does not have; give one of its own classes in 'architectures'"
        )
    try:
        module = kind.from_pretrained(path, local_files_only=True, trust_remote_code=False, use_safetensors=True,
                                      dtype=torch.float32, attn_implementation="eager")  # fmt: skip
    except Exception as error:
        raise _unreadable(path, error) from error
    module.eval()
    if hasattr(module.config, "use_cache"):
        module.config.use_cache = False
    note = "transformers' own code, attention written out (attn_implementation='eager'), no cache of keys and values"
    return Program(SourceKind.FOLDER.value, name, "eval mode", module=module, notes=[("program", note)])


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(
        f"'{path.name}' cannot be loaded by PyTorch {torch.__version__}: {reason(error)}; save it again with this "
        "version, or export it to ONNX where it loads"
    )


def from_module(module: torch.nn.Module) -> Program:
    """A module of the caller's, left as it is: the trace puts it into eval mode and back."""
    if isinstance(module, torch.jit.ScriptModule):
        _check_script(module)
        return Program(SourceKind.TORCHSCRIPT.value, module.original_name or "ScriptModule", "", module=module)
    _check_precision(module.parameters())
    return Program(MODULE, type(module).__name__, "", module=module)


def _check_precision(parameters: Iterable[torch.Tensor]) -> None:
    """Weights are FP32; some of a program's may be FP64 beside them, but not all."""
    kinds = {str(p.dtype).removeprefix("torch.") for p in parameters if p.dtype.is_floating_point}
    other = kinds - {"float32", "float64"} or (kinds if kinds == {"float64"} else set())
    if other:
        raise ModelError(
            f"the program holds parameters of type {', '.join(sorted(other))}; the reference is FP32: call .float() on "
            "the module before it is given or saved"
        )
