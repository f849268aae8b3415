"""The page as bytes: self-contained, escaped, small, readable without scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from converter.report.html_payload import payload
from converter.report.html_view import SCRIPTS, to_html
from converter.report.markup import Markup, escape, join, name, tag

ELEMENTS = (
    {"html", "head", "meta", "title", "style", "script", "body", "header", "nav", "main", "section", "aside"}
    | {"h1", "h2", "h3", "p", "div", "span", "b", "a", "bdi", "small", "pre", "ul", "li", "dl", "dt", "dd"}
    | {"table", "caption", "thead", "tbody", "tr", "th", "td", "svg", "rect"}
)


class Page(HTMLParser):
    """The parsed page: every element with its attributes, and text outside of scripts and styles."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.elements, self.text, self.scripts, self.styles = [], [], [], []
        self._raw = None
        self.feed(content.decode("utf-8"))

    def handle_starttag(self, element, attributes):
        self.elements.append((element, dict(attributes)))
        self._raw = {"script": self.scripts, "style": self.styles}.get(element)
        if self._raw is not None:
            self._raw.append("")

    def handle_endtag(self, element):
        self._raw = None

    def handle_data(self, text):
        if self._raw is None:
            self.text.append(text)
        else:
            self._raw[-1] += text

    def all(self, element):
        return [attributes for found, attributes in self.elements if found == element]


@pytest.fixture(params=["passing", "failing", "hostile", "empty"])
def page(request):
    return Page(to_html(request.getfixturevalue(request.param)))


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def unpacked(content: Page):
    return json.loads(zlib.decompress(base64.b64decode(content.scripts[0])))


def test_policy_lets_nothing_run_but_its_own_script(page):
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": digest(page.scripts[1]),
        "style-src": digest(page.styles[0]),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_there_are_exactly_two_scripts_and_one_style(page):
    assert [attributes.get("type") for attributes in page.all("script")] == ["application/octet-stream", None]
    assert len(page.styles) == 1


def test_nothing_is_loaded_from_anywhere(page):
    for element, attributes in page.elements:
        assert not {"src", "srcset", "data", "action", "style"} & set(attributes)
        assert not [key for key in attributes if key.startswith("on")]
        if "href" in attributes:
            assert re.fullmatch(r"#[a-z-]+", attributes["href"]), element
    assert "url(" not in page.styles[0]
    assert "@import" not in page.styles[0]
    banned = r"\b(fetch|XMLHttpRequest|import|eval|innerHTML|outerHTML|insertAdjacentHTML)\b|document\.write"
    assert not re.search(banned, page.scripts[1])


def test_only_known_elements_occur(page):
    assert {element for element, _ in page.elements} <= ELEMENTS


def test_payload_is_base64(page):
    assert re.fullmatch(r"[A-Za-z0-9+/]+=*", page.scripts[0])


def test_hostile_text_is_only_text(hostile):
    content = to_html(hostile).decode("utf-8")
    assert "<img" not in content
    assert "<!--<script>" not in content
    assert not set(content) & set("\x1b\u202e\u2066\u200b\u2028\u2029\x00\x7f\x9f")
    shown = "".join(Page(content.encode()).text)
    assert "</script><img src=x onerror=\"document.title='owned'\">" in shown
    assert "abc\\u202etxt.exe\\u2066\\u200b" in shown


def test_a_megabyte_of_name_is_cut(hostile):
    assert len(to_html(hostile)) < 250_000
    assert max(map(len, payload(hostile)["layers"][11][:2])) == 1000


def test_5000_layers_stay_below_two_megabytes(large):
    content = to_html(large)
    assert len(large["layers"]) == 5_000
    assert len(content) < 2_000_000


def test_without_scripts_the_strip_and_the_worst_layers_stand(large):
    page = Page(to_html(large))
    text = " ".join(page.text)
    assert "✕ FAIL" in text
    assert "Error starts at /encoder/layer.179/ffn/Pow (Pow, FP16): its range reaches" in text
    assert "The 50 worst of 5,000 layers" in text
    rows = [attributes for attributes in page.all("th") if attributes.get("scope") == "row"]
    assert len(rows) > 50


def test_tables_are_labelled(page):
    assert len(page.all("caption")) == len(page.all("table"))
    for attributes in page.all("th"):
        assert attributes["scope"] in ("row", "col")
    boxes = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)


STRIP = ["✓ PASS", "8.56e-4 of 2.10e-3 allowed", "86 %", "97 %", "99.6 %", "-49.7 %", "438 MB → 220 MB", "6 casts"]
LISTS = ["training information is not carried over", "● chosen", "-inf", "mask sentinel, saturated", "1.57 MB"]
FAIL = ["✕ FAIL", "1 output", "6 layers", "12,288", "nonfinite", "nan", "/encoder/layer.0/ffn/up/MatMul"]
NOTHING = ["– UNCHECKED", "Nothing was compared.", "No output was compared.", "No clamp was inserted."]


@pytest.mark.parametrize(
    ("example", "expected"), [("passing", STRIP), ("passing", LISTS), ("failing", FAIL), ("empty", NOTHING)]
)
def test_says_what_it_should(example, expected, request):
    text = "".join(Page(to_html(request.getfixturevalue(example))).text)
    assert [part for part in expected if part not in text] == []


def test_provenance_shows_hashes_versions_and_the_command(passing):
    text = " ".join(Page(to_html(passing)).text)
    command = "narrowcast convert encoder.onnx --samples BATCH1.npz --samples BATCH2.npz --to fp16"
    assert f"{command} --keep-fp32 Softmax --policy POLICY.json" in text
    assert '{"format": "bf16", "node": "*/pooler/*"}' in text
    for part in ("3f" * 32, "a7" * 32, "1.32.0", "avx2 avx512f fma", "emulator (ieee)", "Report schema 1.0"):
        assert part in text


def test_long_lists_say_that_they_are_cut(passing):
    findings = [{"kind": "k", "where": "w", "message": f"finding {n}"} for n in range(301)]
    widened = [{**passing["repair"][0], "widened": [f"n{n}" for n in range(25)]}]
    text = " ".join(Page(to_html({**passing, "findings": findings, "repair": widened})).text)
    assert "300 of 301 shown; the JSON report has all." in text
    assert "finding 299" in text
    assert "finding 300" not in text
    assert "and 5 more" in text


def test_equal_reports_give_equal_pages(passing):
    assert to_html(passing) == to_html(json.loads(json.dumps(passing)))


# ------------------------------------------------------------------------------------------------ payload


def test_payload_rows_follow_their_fields(failing):
    content = unpacked(Page(to_html(failing)))
    row = dict(zip(content["fields"]["layer"], content["layers"][8], strict=True))
    figures = dict(zip(content["fields"]["figures"], row["figures"], strict=True))
    assert (row["node"], row["op_type"], row["status"]) == ("/encoder/layer.0/ffn/Pow", "Pow", "over limit")
    assert (figures["rel_l2_error"], figures["misplaced_nonfinite"], figures["max_ulp_error"]) == (0.31, 12, None)
    assert row["inputs"] == [7]
    assert content["first"] == 8
    assert content["limit"] == {"output": failing["outputs"][0]["value"], "allowed": 0.0021}


def test_payload_rounds_figures_but_not_the_cosine(failing):
    layer = {**failing["layers"][0], "rel_l2_error": 1.23456789e-4, "cosine_similarity": 0.999999876}
    found = payload({**failing, "layers": [layer]})["layers"][0][11]
    assert (found[0], found[4]) == (1.2346e-4, 0.999999876)


def test_payload_names_non_finite_figures(failing):
    layer = {**failing["layers"][0], "headroom_bits": None, "headroom_bits_nonfinite": "inf"}
    assert payload({**failing, "layers": [layer]})["layers"][0][8] == "inf"


def test_payload_histogram_hides_no_rare_bin(failing):
    exponents = {"lowest": -3, "counts": [1, 0, 1_000_000]}
    layer = {**failing["layers"][0], "range": {**failing["layers"][0]["range"], "exponents": exponents}}
    assert payload({**failing, "layers": [layer]})["layers"][0][14] == [-3, 1, 0, 1000]


def test_payload_finds_inputs_in_the_body_first_and_then_outside(failing):
    base = failing["layers"][0]
    outer = {**base, "value": "x"}
    inner = {**base, "value": "x", "scope": "If_1.then_branch/"}
    reader = {**base, "value": "y", "scope": "If_1.then_branch/", "inputs": ["x", "z", "gone"]}
    deep = {**base, "value": "w", "scope": "If_1.then_branch/Loop_2.body/", "inputs": ["x"]}
    around = {**base, "value": "z"}
    rows = payload({**failing, "layers": [outer, inner, reader, deep, around]})["layers"]
    assert rows[2][10] == [1, 4, "gone"]
    assert rows[3][10] == [1]


def test_payload_of_nothing(empty):
    content = payload(empty)
    assert (content["layers"], content["decisions"], content["limit"], content["first"]) == ([], [], None, None)


# ------------------------------------------------------------------------------------------------- markup


def test_text_is_escaped_and_markup_is_not():
    assert escape("<a href=\"x\" id='y'>&amp;") == "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;amp;"
    assert tag("p", "a<b", tag("b", "c"), [Markup("<i>"), "<"]) == "<p>a&lt;b<b>c</b><i>&lt;</p>"
    assert join(["<", Markup("<")]) == "&lt;<"


def test_attributes_are_escaped_and_may_be_left_out():
    assert tag("p", class_='"x"', aria_label="<", title=None, tabindex=0) == (
        '<p class="&quot;x&quot;" aria-label="&lt;" tabindex="0"></p>'
    )
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_names_are_printable_and_isolated():
    assert name("a\u202eb<") == '<bdi class="name">a\\u202eb&lt;</bdi>'


def test_every_script_asset_is_part_of_the_page():
    found = {entry.name for entry in files("converter.report").joinpath("assets").iterdir()}
    assert found == {*SCRIPTS, "page.css", "page.html"}
