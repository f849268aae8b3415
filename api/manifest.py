"""What can be said about files without parsing them: names, kinds, sizes, first bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Final

from api.errors import ApiError
from worker.contract import ModelFile

FORMATS: Final[Mapping[str, str]] = {
    ".onnx": "onnx",
    ".pt2": "torch-export",
    ".pt": "torchscript",
    ".pth": "torchscript",
    ".ts": "torchscript",
}
BATCHES: Final = (".npz", ".npy", ".safetensors")
MAX_PROTO_BYTES: Final = 2**31 - 1
MAX_PATH: Final = 1024
_MAGIC: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"\x1f\x8b", "gzip"),
    (b"\x80\x02", "pickle"),
    (b"\x80\x03", "pickle"),
    (b"\x80\x04", "pickle"),
    (b"\x80\x05", "pickle"),
)
_ZIP: Final = b"PK\x03\x04"
_NPY: Final = b"\x93NUMPY"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\\]")


def check_paths(paths: list[str], entry: str) -> None:
    """Every path is relative, plain and unique; the entry is one of them.

    Raises INVALID_REQUEST with a finding for each path that is not.
    """
    findings = [
        {"pointer": f"/files/{number}/path", "code": "BAD_PATH", "message": why}
        for number, path in enumerate(paths)
        if (why := _fault(path))
    ]
    folded = [path.casefold() for path in paths]
    findings += [
        {"pointer": f"/files/{number}/path", "code": "DUPLICATE_PATH", "message": f"{path[:100]!r} is given twice"}
        for number, path in enumerate(folded)
        if path in folded[:number]
    ]
    files = set(folded) - {"."}
    findings += [
        {"pointer": f"/files/{number}/path", "code": "BAD_PATH", "message": "a folder on the way is a file as well"}
        for number, path in enumerate(folded)
        if not files.isdisjoint(str(folder) for folder in PurePosixPath(path).parents)
    ]
    if entry not in paths:
        findings.append({"pointer": "/entry", "code": "NO_SUCH_FILE", "message": "the entry is none of the files"})
    if "/" in entry:
        findings.append({"pointer": "/entry", "code": "BAD_PATH", "message": "the entry lies in the top folder"})
    if findings:
        raise ApiError("INVALID_REQUEST", "the manifest cannot be laid out as files", errors=findings)


def _fault(path: str) -> str:
    parts = path.split("/")
    if path.encode(errors="ignore").decode() != path or len(path) > MAX_PATH:
        return f"the path is no Unicode text of at most {MAX_PATH} characters"
    if _CONTROL.search(path):
        return "control characters and backslashes are not allowed"
    if path.startswith("/") or re.match(r"^[A-Za-z]:", path) or "://" in path:
        return "the path is not relative"
    if any(part in ("", ".", "..") for part in parts):
        return "empty parts, '.' and '..' are not allowed"
    if any(len(part.encode()) > 200 for part in parts):
        return "a part is longer than 200 bytes"
    return ""


def format_of(entry: str, wanted: str | None) -> str:
    """Raises UNSUPPORTED_MEDIA_TYPE for anything but the formats we read."""
    found = FORMATS.get(PurePosixPath(entry).suffix.lower())
    if found is None or (wanted is not None and wanted != found):
        known = ", ".join(FORMATS)
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", f"{entry[:100]!r} is no model we take; models end in {known}")
    return found


def check_model(entry: ModelFile, kind: str, head: Callable[[str], bytes]) -> None:
    """Look at size and first bytes of the entry; ``head`` reads the first bytes of a blob."""
    start = head(entry.sha256)
    for magic, name in _MAGIC:
        if start.startswith(magic):
            raise ApiError("UNSAFE_CONTENT" if name == "pickle" else "UNSUPPORTED_MEDIA_TYPE",
                           f"{entry.path[:100]!r} is a {name} file, not a model we take")  # fmt: skip
    if kind == "onnx" and start.startswith(_ZIP):
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", f"{entry.path[:100]!r} is an archive; send its files one by one")
    if kind == "onnx" and entry.size > MAX_PROTO_BYTES:
        raise ApiError(
            "TOO_LARGE", "an .onnx file ends at 2 GiB; store its weights as external data", limit=MAX_PROTO_BYTES,
            actual=entry.size,
        )  # fmt: skip
    if kind == "torch-export" and not start.startswith(_ZIP):
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", f"{entry.path[:100]!r} is no .pt2 archive")


def check_batch(filename: str, start: bytes) -> None:
    """Raises UNSUPPORTED_MEDIA_TYPE for a batch we do not read."""
    suffix = PurePosixPath(filename).suffix.lower()
    wanted = {".npz": _ZIP, ".npy": _NPY}.get(suffix, b"")
    if suffix not in BATCHES or not start.startswith(wanted) or any(start.startswith(m) for m, _ in _MAGIC):
        raise ApiError(
            "UNSUPPORTED_MEDIA_TYPE", f"{filename[:100]!r} is no batch we take; batches are {', '.join(BATCHES)}"
        )
