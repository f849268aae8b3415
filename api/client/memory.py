"""What the client remembers across its own death: which file has which digest, and which upload it was on.

One JSON file in the user's cache folder.  Losing it costs time, never correctness: digests are checked by the
service, and an upload it does not know any more is started anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

KEPT: Final = 2000
KEEP_S: Final = 7 * 86400


class UploadMemory:
    """Digest and upload id by service, path, size and modification time."""

    def __init__(self, base_url: str, folder: Path | None = None) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._file = (folder or cache / "narrowcast") / "uploads.json"
        self._base_url = base_url

    def recall(self, path: Path) -> dict[str, str]:
        """What is known of the file as it is now; empty when nothing is."""
        with self._entries(write=False) as entries:
            found = entries.get(self._key(path), {})
            return {name: str(value) for name, value in found.items() if name in ("sha256", "upload")}

    def remember(self, path: Path, **facts: str) -> None:
        with self._entries(write=True) as entries:
            key = self._key(path)
            entries[key] = {**entries.get(key, {}), **facts, "at": time.time()}

    def _key(self, path: Path) -> str:
        status = path.stat()
        return "|".join((self._base_url, str(path.resolve()), str(status.st_size), str(status.st_mtime_ns)))

    @contextlib.contextmanager
    def _entries(self, *, write: bool) -> Iterator[dict[str, Any]]:
        """The file's content, locked; written back when asked to.  A read-only home folder is no obstacle."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = self._file.with_suffix(".lock").open("w")
        except OSError:
            yield {}
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = self._load()
            yield entries
            if write:
                self._save(entries)

    def _load(self) -> dict[str, Any]:
        try:
            entries = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}

    def _save(self, entries: dict[str, Any]) -> None:
        limit = time.time() - KEEP_S
        fresh = {key: one for key, one in entries.items() if one.get("at", 0) > limit}
        kept = dict(sorted(fresh.items(), key=lambda item: item[1]["at"])[-KEPT:])
        written = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):
            written.write_text(json.dumps(kept))
            written.replace(self._file)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
