"""What the service needs of a store: six methods over names such as ``blobs/ab/abcd…-1f2e``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol


class Storage(Protocol):
    """Whole objects under immutable names.  What a name shows is complete and durable, or not there."""

    def put(self, source: Path, name: str) -> None:
        """Store a file under a new name; ``source`` stays."""

    def put_set(self, folder: Path, name: str) -> None:
        """Store every file of a folder as ``name/file``; all appear at once, and the folder is used up."""

    def fetch(self, name: str, destination: Path, on_bytes: Callable[[int], None]) -> None:
        """Copy an object into a new file of its own; ``on_bytes`` learns how many bytes arrived so far."""

    def open(self, name: str) -> BinaryIO:
        """A seekable reader; FileNotFoundError when there is no such object."""

    def delete(self, name: str) -> None:
        """Remove an object or a set; nothing happens when there is none."""

    def sets(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Everything directly below the prefix's second level, with its age in seconds."""
