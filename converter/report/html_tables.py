"""Building blocks of the static page: sections, tables, definition lists, marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from converter.report import wording
from converter.report.columns import Column
from converter.report.markup import Markup, join, name, tag
from converter.report.records import Object

_MARKS = {
    "within limits": "✓",
    "as expected": "✓",
    "over limit": "✕",
    "abnormal": "▲",
    "not run": "–",
    "unchecked": "–",
}
"""A sign beside the word, so that nothing depends on telling colours apart."""

METER_WIDTH, METER_LIMIT = 90, 60
"""Pixels of a whole meter, and of the part that stands for its limit."""

MESSAGE_LIMIT = 600


def named(title: str, key: str) -> Column:
    """A column of names from the model."""
    return Column(title, lambda entry: name(entry[key]))


def told(title: str, key: str) -> Column:
    """A column of sentences, which may wrap."""
    return Column(title, lambda entry: name(entry[key], MESSAGE_LIMIT), wide=True)


def section(anchor: str, title: str, *body: str, remark: str = "", class_: str | None = None) -> Markup:
    heading = tag("h2", title, tag("small", remark) if remark else Markup(""))
    return tag("section", heading, *body, id=anchor, class_=class_)


def table(columns: Sequence[Column], entries: Iterable[Object], caption: str, class_: str | None = None) -> Markup:
    """A table inside a box that scrolls sideways.  Its first column names the row; columns without figures go."""
    rows = [[column.cell(entry) for column in columns] for entry in entries]
    kept = [n for n in range(len(columns)) if n == 0 or any(row[n] not in (wording.ABSENT, "") for row in rows)]
    body = [tag("tr", *(_cell(columns[n], row[n], first=n == 0) for n in kept)) for row in rows]
    parts = (
        tag("caption", caption, class_="spoken"),
        tag("thead", tag("tr", *(_head(columns[n]) for n in kept))),
        tag("tbody", *body),
    )
    grid = tag("table", *parts, class_=class_)
    return tag("div", grid, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _style(column: Column) -> str | None:
    return "num" if column.number else "wide" if column.wide else None


def _head(column: Column) -> Markup:
    return tag("th", column.title, scope="col", class_=_style(column), title=column.tip or None)


def _cell(column: Column, cell: str, first: bool) -> Markup:
    style = _style(column)
    return tag("th", cell, scope="row", class_=style) if first else tag("td", cell, class_=style)


def pairs(entries: Iterable[tuple[str, str]], class_: str) -> Markup:
    """A definition list."""
    return tag("dl", *(tag("div", tag("dt", term), tag("dd", meaning)) for term, meaning in entries), class_=class_)


def status_mark(status: str) -> Markup:
    return tag("span", f"{_MARKS.get(status, '')} {status}", class_=f"status {status.replace(' ', '-')}")


def meter(value: float | None, allowed: float | None) -> str:
    """How much of a limit is used, to one and a half times the limit; the tick is the limit."""
    if value is None or not allowed:
        return wording.ABSENT
    used = value / allowed
    width = f"{min(used * METER_LIMIT, METER_WIDTH):.1f}"
    drawn = tag(
        "svg",
        tag("rect", y=2, width=METER_WIDTH, height=8, class_="frame"),
        tag("rect", y=2, width=width, height=8, class_="used" if used <= 1 else "used over"),
        tag("rect", x=METER_LIMIT, width=1, height=12, class_="tick"),
        viewBox=f"0 0 {METER_WIDTH} 12",
        width=METER_WIDTH,
        height=12,
        aria_hidden="true",
    )
    said = f" {wording.percent(used)}" if used < 10 else f" {used:,.0f}×"
    return join((drawn, tag("span", said, class_="used-text")))
