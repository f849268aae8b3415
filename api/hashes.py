"""Digests of uploads in progress, kept so that a file need not be read again when its last byte has come.

Only a shortcut: an upload whose digest is not here (another process, a restart) is read once more.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hashlib import _Hash

KEPT: Final = 256


class RunningHashes:
    """Upload id -> digest of its first ``offset`` bytes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[int, _Hash]] = OrderedDict()

    def take(self, upload_id: str, offset: int) -> _Hash | None:
        """The digest that continues at ``offset``; None when it is not known."""
        kept = self._kept.pop(upload_id, None)
        if offset == 0:
            return hashlib.sha256()
        return kept[1] if kept is not None and kept[0] == offset else None

    def keep(self, upload_id: str, offset: int, running: _Hash | None) -> None:
        if running is not None:
            self._kept[upload_id] = (offset, running)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
