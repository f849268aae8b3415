"""Numbers and names as people read them; shared by every view that is not JSON or CSV."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ABSENT = "–"
"""Stands where a figure was not measured or has no value."""

_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that can move, hide or reorder text: controls, formats, surrogates, separators."""


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters: long text loses its middle."""
    if len(text) <= limit:
        return text
    kept = limit - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def printable(text: str, limit: int = 200) -> str:
    """Model text that is safe to show: no control or format character survives, long text loses its middle.

    Such a character becomes its escape in Python: backslash and ``n``, ``x1b``, ``u202e`` and so on.
    """
    text = shortened(text, limit)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _UNPRINTABLE:
        return character
    return character.encode("unicode_escape").decode("ascii")


def figure(value: float | None, digits: int = 3) -> str:
    """An error figure: three significant digits, the exponent without padding (``3.12e-4``)."""
    if value is None:
        return ABSENT
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def number(value: float | None) -> str:
    """A magnitude: thousands grouped where that is short, else three significant digits."""
    if value is None:
        return ABSENT
    if value == 0 or 1e-2 <= abs(value) < 1e7:
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return figure(value)


def measured(value: float | None) -> str:
    """A value of unknown kind beside its limit: an error like 2.1e-3 or a count like 1,204."""
    return number(value) if value is not None and abs(value) >= 1 else figure(value)


def of(record: Mapping[str, Any], name: str, show: Callable[[Any], str]) -> str:
    """A number of a report, in the wording of ``show``; a non-finite one by its name."""
    value = record[name]
    return str(record.get(f"{name}_nonfinite", ABSENT)) if value is None else show(value)


def count(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def fixed(value: float | None, decimals: int, unit: str = "") -> str:
    return ABSENT if value is None else f"{value:.{decimals}f}{unit}"


def signed(value: float | None, unit: str = "") -> str:
    """Headroom and the like: one decimal and always a sign."""
    return ABSENT if value is None else f"{value:+.1f}{unit}"


def percent(share: float | None) -> str:
    """A share in percent; one decimal where rounding would claim all or nothing."""
    if share is None:
        return ABSENT
    rounded = f"{100 * share:.0f}"
    return f"{100 * share:.1f} %" if rounded in ("0", "100") and share not in (0, 1) else f"{rounded} %"


def size(count_of_bytes: int | None) -> str:
    """Bytes in decimal units with three significant digits; a difference may be negative."""
    if count_of_bytes is None:
        return ABSENT
    if count_of_bytes < 0:
        return f"-{size(-count_of_bytes)}"
    amount = float(count_of_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def shape(extents: Sequence[int]) -> str:
    return "×".join(map(str, extents)) if extents else "scalar"


def label(format_name: str) -> str:
    """``fp16`` as the field writes it; nothing to say of a node that has no FP32 in it."""
    return ABSENT if format_name == "none" else format_name.upper()


def plural(amount: int, singular: str, more: str = "") -> str:
    return f"{amount:,} {singular if amount == 1 else more or singular + 's'}"
