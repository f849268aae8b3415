"""Finds the row of the policy table that speaks for an operator at an opset."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from converter.operators import canonical_domain
from converter.policy.table import DEFAULT_WIDE, TABLE
from converter.types import OpClass, OpPolicy

DEFAULT_SOURCE: Final = "default wide"


def _by_operator(rows: tuple[OpPolicy, ...]) -> Mapping[tuple[str, str], tuple[OpPolicy, ...]]:
    found: dict[tuple[str, str], tuple[OpPolicy, ...]] = {}
    for row in rows:
        key = (row.domain, row.op_type)
        found[key] = (*found.get(key, ()), row)
    return MappingProxyType(found)


_ROWS: Final = _by_operator(TABLE)
_DEFAULTS: Final = {
    op_type: OpPolicy(op_type, OpClass.WIDE, reason, DEFAULT_SOURCE) for op_type, reason in DEFAULT_WIDE.items()
}


def policy_for(domain: str, op_type: str, opset: int) -> OpPolicy | None:
    """The row whose bracket holds ``opset``, or a wide one for an operator of ``DEFAULT_WIDE``.

    None for an operator that the table does not know, custom ones included.
    """
    domain = canonical_domain(domain)
    for row in _ROWS.get((domain, op_type), ()):
        if row.since <= opset and (row.until is None or opset <= row.until):
            return row
    return _DEFAULTS.get(op_type) if domain == "" else None


NARROW_SUMS: Final = frozenset(row.op_type for row in TABLE if row.accumulate == "narrow")
"""Operators that some hardware sums in the narrow format (matrix units with a half-precision accumulator, NPUs)."""
