"""The page in a real browser: it runs, says nothing on the console, and runs nothing of the model's."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from converter.report.html_view import to_html
from converter.report.json_view import read_report, to_json
from tests.report import examples
from tests.report.test_html_view import ELEMENTS, Page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

TITLE = "FAIL · </script><img src=x onerror=\"document.title='owned'\"> · narrowcast"
"""What the page with hostile names is called as long as none of them runs."""

SCRIPTED = {"button", "colgroup", "col", "input", "select", "option", "output", "line", "path", "text"}

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--virtual-time-budget=10000",
    "--window-size=1440,1200",
)


@dataclass
class Shown:
    """What a page became: its elements afterwards, attributes of its root, lines on the console."""

    page: Page
    console: list[str]

    @property
    def root(self):
        return self.page.all("html")[0]

    def text(self):
        return " ".join(self.page.text)


@pytest.fixture
def show(tmp_path):
    def run(content: bytes, anchor: str = "") -> Shown:
        path = Path(tmp_path / "report.html")
        path.write_bytes(content)
        command = [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri() + anchor]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        console = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if "CONSOLE" in line]
        return Shown(Page(done.stdout), console)

    return run


@pytest.mark.parametrize("example", ["passing", "failing", "hostile", "empty", "large"])
def test_runs_without_a_word_on_the_console(example, show, request):
    report = request.getfixturevalue(example)
    shown = show(to_html(report))
    assert shown.console == []
    assert "data-error" not in shown.root
    assert shown.root["data-ready"] == str(len(report["layers"]))


def test_hostile_names_do_not_run(hostile, show):
    shown = show(to_html(hostile), "#layer-0")
    assert shown.root["data-ready"] == "14"
    assert {element for element, _ in shown.page.elements} <= ELEMENTS | SCRIPTED
    assert len(shown.page.scripts) == 2
    assert not [key for _, attributes in shown.page.elements for key in attributes if key.startswith("on")]
    assert TITLE in shown.page.text
    assert "abc\\u202etxt.exe" in shown.text()
    assert not set(shown.text()) & set("\x1b\u202e\u2066\u200b\u2028\u2029")


def test_the_snippet_of_a_hostile_name_is_a_shell_pattern_for_it(hostile, show):
    for index in (2, 8):
        shown = show(to_html(hostile), f"#layer-{index}")
        snippet = json.loads(next(text for text in shown.page.text if text.startswith('{"node": ')))
        assert snippet == {"node": hostile["layers"][index]["node"].replace("*", "[*]").replace("[x]", "[[]x]").replace(
            "[red]", "[[]red]").replace("[/red]", "[[]/red]"), "format": "fp32"}  # fmt: skip


def test_draws_only_the_rows_in_sight(large, show):
    shown = show(to_html(large))
    drawn = [attributes for attributes in shown.page.all("tr") if "aria-rowindex" in attributes]
    assert 20 < len(drawn) < 200
    assert [a["aria-rowcount"] for a in shown.page.all("table") if "aria-rowcount" in a] == ["5001", "5001"]


def test_script_and_static_page_word_figures_alike(failing, show):
    """The first layer's cells, drawn by the script, against the same layer in the static table."""
    report = {**failing, "layers": failing["layers"][8:9]}
    seen = driven(show, report, steps=False)
    script = dict(zip(seen["heads"], seen["cells"], strict=True))
    static = static_cells(to_html(report))
    shared = set(script) & set(static) - {"Range"}
    assert len(shared) >= 14
    assert {title: script[title] for title in shared if title != "Status"} == {
        title: static[title] for title in shared if title != "Status"
    }
    assert script["Status"] == "✕ over limit"


def test_can_be_used_with_mouse_and_keyboard(show):
    seen = driven(show, read_report(to_json(examples.failing(12, broken_block=6))))
    assert seen["drawn"] < 60
    assert seen["expression"] == ["1 of 168 layers", "/encoder/layer.6/ffn/Pow"]
    assert seen["substring"] == "12 of 168 layers"
    assert seen["broken"] == ["true", "168 of 168 layers"]
    assert seen["nothing"] == "Nothing matches."
    assert float(seen["largest"]) > float(seen["smallest"]) > 0
    assert seen["sorted"] == "descending"
    assert seen["state"] == "1 of 168 layers"
    assert seen["cleared"] == "168 of 168 layers"
    assert (seen["end"], seen["down"]) == ("169", "3")
    assert seen["drawer"] == [False, "/encoder/layer.0/attn/key/MatMul", "#layer-1"]
    assert json.loads(seen["snippet"]) == {"node": "/encoder/layer.0/attn/key/MatMul", "format": "fp32"}
    assert [row[0] for row in seen["figures"]] == ["rel L2 error", "max abs error"]
    assert seen["neighbour"] == "/encoder/layer.0/attn/query/MatMul"
    assert seen["closed"] == [True, ""]
    assert seen["slash"] == "search"
    assert "accumulated" in seen["tip"]
    assert seen["twin"] is False
    assert re.fullmatch(r"\d\d of 168 layers", seen["zoomed"])
    assert seen["whole"] == "168 of 168 layers"
    assert seen["byKey"] == "1 of 167"
    assert seen["linked"] == "/encoder/layer.6/ffn/Pow"
    assert seen["decisions"] == "12 of 168 decisions"


def driven(show, report, steps=True):
    """What the driver saw; its script is allowed beside the page's own."""
    driver = Path(__file__).with_name("driver.js").read_text()
    if not steps:
        driver = driver.replace("seen.drawn =", "return done(seen);\n  seen.drawn =", 1)
    driver = "const done = (seen) => document.documentElement.setAttribute('data-seen', " \
             "btoa(unescape(encodeURIComponent(JSON.stringify(seen)))));\n" + driver  # fmt: skip
    allowed = base64.b64encode(hashlib.sha256(driver.encode()).digest()).decode()
    content = to_html(report).decode()
    content = content.replace("script-src ", f"script-src 'sha256-{allowed}' ", 1)
    shown = show(content.replace("</body>", f"<script>{driver}</script></body>").encode())
    seen = json.loads(base64.b64decode(shown.root["data-seen"]))
    assert "failed" not in seen, seen
    assert shown.console == []
    return seen


def static_cells(content: bytes) -> dict[str, str]:
    """The one row of the static layer table, by column head."""
    table = re.search(r'class="static">.*?<thead>(.*?)</thead><tbody>(.*?)</tbody>', content.decode(), re.DOTALL)
    heads, body = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", part) for part in table.groups())
    return dict(zip(heads, (re.sub(r"<[^>]*>", "", cell).strip() for cell in body), strict=True))
