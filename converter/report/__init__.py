"""Views of a conversion report.

``json_view`` writes the report and reads it back; every other view takes what was read back.  Nothing here
imports onnx, onnxruntime or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from converter.errors import OptionError
from converter.report.csv_view import to_csv
from converter.report.html_view import to_html
from converter.report.json_view import dump, read_report, report_object, to_json
from converter.report.junit_view import to_junit
from converter.report.markdown_view import to_markdown
from converter.report.model_explorer_view import to_model_explorer
from converter.report.records import Object

__all__ = ["VIEWS", "read_report", "report_object", "to_json", "view"]

VIEWS: Mapping[str, Callable[[Object], bytes]] = {
    "csv": to_csv,
    "html": to_html,
    "json": dump,
    "junit": to_junit,
    "markdown": to_markdown,
    "model-explorer": to_model_explorer,
}
"""What ``narrowcast report --format`` takes."""


def view(report: Object, name: str) -> bytes:
    """A report that was read back, as one of VIEWS."""
    if name not in VIEWS:
        raise OptionError(f"there is no report format {name!r}; choose one of {', '.join(VIEWS)}")
    return VIEWS[name](report)
