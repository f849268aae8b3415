"""PyTorch programs: loading, tracing to ONNX, and handing a mixed program back.

The only package that imports torch.  Loading a TorchScript or ``.pt2`` file runs code from it, so ``load`` is called
in the isolated child process only; modules a caller holds already are traced where they are.
"""

from __future__ import annotations

from importlib.util import find_spec

from converter.errors import EnvironmentFailure

TORCH = "torch>=2.13,<2.14"


class PackageMissing(EnvironmentFailure):
    """An optional package is not installed."""

    code = "PACKAGE_MISSING"


def require_torch() -> None:
    """Check that what tracing needs is installed.

    Raises:
        PackageMissing: with the command that installs it.
    """
    for package in ("torch", "onnxscript"):
        if find_spec(package) is None:
            raise PackageMissing(
                f"PyTorch programs need the package {package}; install it with `pip install 'narrowcast[torch]'`"
            )


def require_transformers() -> None:
    """Check that Hugging Face folders can be read.

    Raises:
        PackageMissing: with the command that installs it.
    """
    if find_spec("transformers") is None:
        raise PackageMissing(
            "a Hugging Face folder needs the package transformers; install it with `pip install "
            "'narrowcast[transformers]'`"
        )
