"""The page at /, which compares two sentences and searches the corpus by the server's own API."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response
from starlette.routing import Route

from pipeline.models.model_dir import EXAMPLES

_FILES = {
    "/": ("index.html", "text/html"),
    "/page/style.css": ("style.css", "text/css"),
    "/page/script.js": ("script.js", "text/javascript"),
    "/page/examples.json": (EXAMPLES, "application/json"),
}
PATHS = frozenset(_FILES)
_HEADERS = {
    # What a sentence or a corpus holds cannot run, and nothing is fetched from other servers.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # A browser asks again after the server was updated.
    "cache-control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Add the routes of the page. It holds nothing of the model, so it needs no token; its requests do."""
    folder = Path(__file__).parent / "static"
    for path, (name, media_type) in _FILES.items():
        answer = Response((folder / name).read_bytes(), headers=_HEADERS, media_type=media_type)
        app.router.routes.append(Route(path, answer, methods=["GET"]))
