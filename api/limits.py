"""Requests per key and minute, by a bucket that refills; kept in this process."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a key's limit; ``wait_s`` is 0 when the request may go on."""

    limit: int
    left: int
    wait_s: float

    def headers(self) -> dict[str, str]:
        seconds = max(1, math.ceil(self.wait_s)) if self.wait_s else 60
        return {
            "RateLimit-Policy": f'"requests";q={self.limit};w=60',
            "RateLimit": f'"requests";r={self.left};t={seconds}',
        }


class RateLimiter:
    """``per_minute`` requests, all at once or spread; 0 means no limit."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def ask(self, key: str) -> Allowance | None:
        """Take one request from the key's bucket; None when there is no limit."""
        if not self.per_minute:
            return None
        moment = time.monotonic()
        level, seen = self._buckets.pop(key, (float(self.per_minute), moment))
        level = min(self.per_minute, level + (moment - seen) * self.per_minute / 60)
        allowed = level >= 1
        self._buckets[key] = (level - 1 if allowed else level, moment)
        if len(self._buckets) > KEPT:
            self._buckets.popitem(last=False)
        wait = 0.0 if allowed else (1 - level) * 60 / self.per_minute
        return Allowance(self.per_minute, max(0, int(level) - 1), wait)
