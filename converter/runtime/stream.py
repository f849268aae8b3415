"""One stream of the interpreter: the values of one number format while a batch runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from converter.formats import FloatFormat
from converter.runtime.formatting import ConstantStore, FormatSpec, Rounding, limited

UNSET: Any = object()


class Stream:
    """Values by id, as stored and (made on demand) as rounded copies for narrow readers."""

    __slots__ = ("_constants", "_copies", "_derived", "_rounding", "_values", "failure", "position", "spec")

    def __init__(self, position: int, spec: FormatSpec, constants: ConstantStore, rounding: Rounding) -> None:
        self.position = position
        self.spec = spec
        self.failure: tuple[str, str] | None = None
        """(node label, message) once the stream could not go on."""
        self._constants = constants
        self._rounding = rounding
        self._values: dict[int, Any] = {}
        self._copies: dict[int, Any] = {}
        self._derived: dict[int, dict[FloatFormat | None, Any]] = {}

    def store(self, value_id: int, value: Any) -> None:
        """Keep a value as it is stored (already rounded)."""
        self._values[value_id] = value
        if self._copies:
            self._copies.pop(value_id, None)
        if self._derived:
            self._derived.pop(value_id, None)

    def store_result(self, value_id: int, value: Any) -> Any:
        """Round a fresh result to its stored format, apply the Clip behind it, and keep it."""
        narrow = self.spec.stored[value_id]
        if narrow is not None:
            value = self._rounding(value, narrow)
        bound = self.spec.output_bounds.get(value_id)
        if bound is not None:
            value = limited(value, bound)
        self.store(value_id, value)
        return value

    def load(self, value_id: int) -> Any:
        """A value as stored."""
        value = self._values.get(value_id, UNSET)
        if value is UNSET:
            if self.spec.stored[value_id] is not None and value_id in self.spec.constant_bounds:
                return self.load_as(value_id, self.spec.stored[value_id])
            return self._constants.wide(value_id)
        return value

    def load_as(self, value_id: int, narrow: FloatFormat | None) -> Any:
        """A value as a port reads it: as stored, or limited and rounded to ``narrow``."""
        if narrow is None or (self.spec.stored[value_id] is narrow and value_id in self._values):
            return self.load(value_id)
        if value_id not in self._values:
            return self._constants.rounded(value_id, narrow, self.spec.constant_bounds)
        copy = self._copies.get(value_id)
        if copy is None:
            copy = self._values[value_id]
            bound = self.spec.cast_bounds.get(value_id)
            if bound is not None:
                copy = limited(copy, bound)
            copy = self._copies[value_id] = self._rounding(copy, narrow)
        return copy

    def derived(self, value_id: int, key: FloatFormat | None, make: Callable[[], Any]) -> Any:
        """Something a tap makes of a value, kept as long as the value itself."""
        found = self._derived.setdefault(value_id, {})
        if key not in found:
            found[key] = make()
        return found[key]

    def free(self, value_ids: tuple[int, ...]) -> None:
        """Forget values nobody reads any more."""
        for value_id in value_ids:
            self._values.pop(value_id, None)
            self._copies.pop(value_id, None)
            self._derived.pop(value_id, None)
