"""Real providers: which are installed, what they have kernels for, and a run of a whole model on one.

On a real provider the mixed model runs as deployed.  ONNX Runtime's CPU provider has FP16 kernels for few operators
and computes the others in FP32, so its figures show that a model runs, not what FP16 costs; that is the emulator's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from converter.errors import OptionError
from converter.runtime.session import OPEN_END, KernelEntry, WholeModel, installed_providers, kernel_entries

PROVIDERS: Final[Mapping[str, str]] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "cann": "CANNExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "qnn": "QNNExecutionProvider",
    "dml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
}
"""Names of the command line -> names of ONNX Runtime, the preferred ones for ``auto`` being those before ``cpu``."""

_AUTO_ORDER: Final = ("tensorrt", "cuda", "rocm", "migraphx", "cann", "qnn", "openvino", "dml", "coreml")

LATENCY_RUNS: Final = 5


def available() -> dict[str, str]:
    """The providers of this installation, by their command-line names."""
    installed = installed_providers()
    return {name: native for name, native in PROVIDERS.items() if native in installed}


def chosen_provider(name: str) -> str | None:
    """The command-line name of the provider to use; None for ``none``, and for ``auto`` without an accelerator.

    Raises:
        OptionError: the provider is unknown or not part of the installed ONNX Runtime.
    """
    if name == "none":
        return None
    here = available()
    if name == "auto":
        return next((n for n in _AUTO_ORDER if n in here), None)
    if name not in PROVIDERS:
        raise OptionError(f"unknown provider '{name}'; known are none, auto, {', '.join(PROVIDERS)}")
    if name not in here:
        raise OptionError(
            f"provider '{name}' is not part of the installed ONNX Runtime (it has {', '.join(here)}); install the "
            "build for it, or leave --provider out: the emulator needs none"
        )
    return name


class TargetKernels:
    """What a target has kernels for, from the registry of the installed runtime."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._entries: dict[tuple[str, str], list[KernelEntry]] = {}
        for entry in kernel_entries(PROVIDERS[target]):
            self._entries.setdefault((entry.domain, entry.op_type), []).append(entry)

    def runs(self, domain: str, op_type: str, since_version: int, types: Mapping[str, str]) -> bool:
        """Whether a kernel takes these types; ``types`` maps type variables to type strings."""
        for entry in self._entries.get((domain, op_type), ()):
            # An open end stands for the schema that was newest when the kernel was registered, and for no later one.
            fits = entry.start == since_version or (entry.start <= since_version <= entry.end < OPEN_END)
            if fits and all(kind in entry.types.get(var, (kind,)) for var, kind in types.items()):
                return True
        return False


def target_kernels(target: str) -> TargetKernels | None:
    """The kernels of a named target; None for ``any``: what the schema allows.

    Raises:
        OptionError: nothing is known about the target's kernels.
    """
    if target == "any":
        return None
    here = available()
    if target not in here:
        raise OptionError(
            f"nothing is known about the kernels of target '{target}' here; known are any, {', '.join(here)} "
            "(the providers of the installed ONNX Runtime)"
        )
    return TargetKernels(target)


@dataclass(frozen=True, slots=True)
class ProviderRun:
    """A whole model on a real provider: outputs per batch, and the median latency of the first batch in seconds."""

    provider: str
    outputs: tuple[Mapping[str, Any], ...]
    latency: float


def run_on(model: bytes | str, provider: str, batches: Iterable[Mapping[str, Any]]) -> ProviderRun:
    """Run a model on a provider of this installation."""
    session = WholeModel(model, optimise=True, provider=PROVIDERS[provider])
    outputs, latency = [], 0.0
    for number, feeds in enumerate(batches):
        outputs.append(session.run(feeds))
        if number == 0:
            taken = []
            for _ in range(LATENCY_RUNS):
                started = time.perf_counter()
                session.run(feeds)
                taken.append(time.perf_counter() - started)
            latency = sorted(taken)[LATENCY_RUNS // 2]
    return ProviderRun(provider, tuple(outputs), latency)
