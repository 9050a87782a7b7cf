"""The page as one self-contained HTML file: styles, script, figures and plotly.js are inside, and nothing is fetched."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pipeline.report.blocks import Figure, Page
from pipeline.report.traces import COLOURS

_HERE = Path(__file__).parent
PLOTLY = _HERE / "plotly-cartesian.min.js"
"""The part of plotly.js that draws in two dimensions, from npm's plotly.js-cartesian-dist-min. plotly's Python package ships
only the full library, which is three times as large. Both have the same version (tests/report/test_pages.py)."""


def render(page: Page) -> str:
    """The whole page as HTML. The same page always gives the same bytes."""
    templates = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["breakable"] = _breakable
    templates.globals["kind"] = lambda block: type(block).__name__  # pyright: ignore[reportArgumentType]
    first = next((section.id for section in page.sections if any(_switched(block) for block in section.blocks)), "")
    return templates.get_template("page.html").render(
        page=page,
        switches_before=first,
        colours=COLOURS,
        figures=Markup(_json([_figure(figure) for figure in page.figures])),
        style=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
        script=Markup((_HERE / "script.js").read_text(encoding="utf-8")),
        plotly=Markup(PLOTLY.read_text(encoding="utf-8").replace("</script", "<\\/script")),
    )


def _breakable(text: str) -> Markup:
    """Text that may break after an underscore or a plus, so that long names fit into narrow columns."""
    return Markup(re.sub(r"([_+])", r"\1<wbr>", str(escape(text))))


def _figure(one: Figure) -> dict[str, Any]:
    return {"id": one.id, "data": one.data, "layout": one.layout}


def _switched(block: object) -> bool:
    return isinstance(block, Figure) and any("view" in trace["meta"] for trace in block.data)


def _json(value: Any) -> str:
    """JSON escaped so that no browser reads it as markup."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
