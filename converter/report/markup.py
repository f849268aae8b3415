"""HTML that cannot be injected into: text is escaped when it enters, and only this file makes markup from text."""

from __future__ import annotations

from collections.abc import Iterable

from converter.report import wording

_VOID = frozenset({"col", "meta"})

TEXT_LIMIT = 200


class Markup(str):
    """A piece of finished HTML."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Text between tags or inside a quoted attribute."""
    for character, entity in (("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot"), ("'", "#39")):
        text = text.replace(character, f"&{entity};")
    return Markup(text)


def tag(element: str, *children: Markup | str | Iterable[Markup | str], **attributes: str | int | None) -> Markup:
    """An element; a trailing underscore is dropped from attribute names, others become hyphens."""
    opening = element
    for name, value in attributes.items():
        if value is not None:
            opening += f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
    if element in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(children)}</{element}>")


def join(pieces: Iterable[Markup | str | Iterable[Markup | str]]) -> Markup:
    """Markup stays, text is escaped."""
    done = []
    for piece in pieces:
        if isinstance(piece, Markup):
            done.append(piece)
        else:
            done.append(escape(piece) if isinstance(piece, str) else join(piece))
    return Markup("".join(done))


def name(text: str, limit: int = TEXT_LIMIT) -> Markup:
    """A string that came from the model: made printable, isolated from the text around it."""
    return tag("bdi", wording.printable(text, limit), class_="name")
