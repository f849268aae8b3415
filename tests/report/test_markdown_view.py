"""The summary for a pull request."""

from __future__ import annotations

import re

import pytest

from converter.report.markdown_view import code, prose, to_markdown


@pytest.mark.parametrize("name", ["passing", "failing", "empty"])
def test_golden(name, golden, request):
    golden(f"{name}.md", to_markdown(request.getfixturevalue(name)))


def test_is_short(large):
    assert len(to_markdown(large)) < 5_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a/b", "`a/b`"),
        ("a`b", "`` a`b ``"),
        ("a```b", "```` a```b ````"),
        ("a|b", "`a\\|b`"),
        ("a\nb", "`a\\nb`"),
        ("", "–"),
    ],
)
def test_a_name_cannot_leave_its_code_span(text, shown):
    assert code(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[x](y)", "\\[x\\]\\(y\\)"),
        ("<b>", "\\<b\\>"),
        ("@team", "@\u200bteam"),
        ("http://a", "http:\u200b//a"),
        ("www.a.com", "www\u200b.a.com"),
        ("a|b", "a\\|b"),
        ("#1 *b* _c_", "\\#1 \\*b\\* \\_c\\_"),
    ],
)
def test_prose_links_and_mentions_nothing(text, shown):
    assert prose(text) == shown


def test_hostile_names_stay_in_their_cells(hostile):
    text = to_markdown(hostile).decode()
    for line in text.splitlines():
        if line.startswith("|"):
            columns = len(re.findall(r"(?<!\\)\|", line))
            assert columns in (4, 6, 7, 8, 9)
    outside = re.sub(r"(`+).*?\1", "", text)
    assert not re.search(r"(?<!\\)<(?!/?sub>)", outside)
    assert "\x1b" not in text
