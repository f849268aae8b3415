"""Where blobs and artifacts lie.  ``Storage`` is the seam for an object store; a local folder is what exists."""

from worker.storage.local import LocalStorage
from worker.storage.protocol import Storage

__all__ = ["LocalStorage", "Storage"]
