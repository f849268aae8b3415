"""Names of artifact sets, for those who only read them."""

from __future__ import annotations


def set_name(job_id: str, fence: int) -> str:
    """Name of the artifact set of one attempt; another attempt never writes to it."""
    return f"artifacts/{job_id}/{fence}"
