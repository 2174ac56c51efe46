"""The page of an API, with Swagger's files from the package `fastapi-offline`: it works without internet."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from typing import Final

from fastapi import FastAPI
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.requests import Request

__all__ = ["serve_api_page"]

_FILES: Final = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<main id="swagger-ui"></main>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START: Final = """SwaggerUIBundle({{
  url: {url}, dom_id: "#swagger-ui", deepLinking: true, layout: "BaseLayout", validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
}});
"""


def serve_api_page(app: FastAPI) -> None:
    """Serve Swagger's page at `/docs`, with its files beside it. Nothing is asked of another host.

    The page has no script or style in its text, so a content security policy of `default-src 'self'` allows it.
    Make the app with `docs_url=None` and `redoc_url=None`, since FastAPI's own pages are loaded from a CDN.

    Raises:
        ValueError: The app has pages of its own, or no OpenAPI document.
    """
    if app.docs_url is not None or app.redoc_url is not None:
        message = "the app has FastAPI's own pages: make it with FastAPI(docs_url=None, redoc_url=None)"
        raise ValueError(message)
    if app.openapi_url is None:
        message = "the app has no OpenAPI document: make it with an openapi_url"
        raise ValueError(message)
    document = app.openapi_url

    @app.get("/docs", include_in_schema=False)
    async def api_page() -> Response:
        return HTMLResponse(_PAGE.format(title=html.escape(app.title)))

    @app.get("/docs/start.js", include_in_schema=False)
    async def api_page_start(request: Request) -> Response:
        url = json.dumps(str(request.scope.get("root_path", "")) + document)
        return Response(_START.format(url=url), media_type="text/javascript")

    for name, media_type in _FILES.items():
        _serve_file(app, name, media_type)


def _serve_file(app: FastAPI, name: str, media_type: str) -> None:
    path = str(files("fastapi_offline").joinpath("static", name))

    @app.get(f"/docs/{name}", include_in_schema=False)
    async def api_page_file() -> Response:
        return FileResponse(path, media_type=media_type, headers={"Cache-Control": "max-age=3600"})
