"""What decides the last bits of a run: versions, CPU features, threads."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

from converter import __version__
from converter.runtime.session import VERSION, Threads
from converter.types import ConversionRequest, Environment

_TELLING_FLAGS = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "asimd",
                  "asimdhp", "bf16", "sve")  # fmt: skip


def describe(threads: Threads, request: ConversionRequest) -> Environment:
    """The environment of this process; nothing in it is a clock or a path."""
    return Environment(
        narrowcast=__version__,
        python=platform.python_version(),
        onnx=version("onnx"),
        onnx_ir=version("onnx_ir"),
        onnxruntime=VERSION,
        numpy=version("numpy"),
        ml_dtypes=version("ml_dtypes"),
        machine=platform.machine(),
        cpu_features=_cpu_features(),
        threads=threads.count,
        prepacking=False,
        provider=request.provider,
        ran="emulation on the CPU: FP32 kernels of ONNX Runtime, results rounded to the plan's formats",
        tf32=False,
        profile=request.profile.name,
    )


def _cpu_features() -> str:
    """The CPU features that choose between kernels, from ``/proc/cpuinfo`` where there is one."""
    source = Path("/proc/cpuinfo")
    if not source.exists():
        return platform.processor()
    lines = source.read_text(errors="replace").splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return " ".join(f for f in _TELLING_FLAGS if f in flags)
