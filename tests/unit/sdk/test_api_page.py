"""The page of an API works without internet."""

import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hailbus.fastapi import serve_api_page


def app_of(title: str = "shop") -> FastAPI:
    return FastAPI(title=title, docs_url=None, redoc_url=None)


def test_the_page_and_its_files_come_from_the_service_itself() -> None:
    app = app_of('a "shop" <& more>')
    serve_api_page(app)
    client = TestClient(app)
    page = client.get("/docs")
    assert page.status_code == 200
    assert "a &quot;shop&quot; &lt;&amp; more&gt;" in page.text
    assert "://" not in page.text
    asked = re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text)
    assert asked == ["docs/swagger-ui.css", "docs/swagger-ui-bundle.js", "docs/start.js"]
    for path in asked:
        found = client.get(f"/{path}")
        assert found.status_code == 200
        assert found.headers["content-type"].startswith("text/")
    assert "SwaggerUIBundle" in client.get("/docs/swagger-ui-bundle.js").text
    assert 'url: "/openapi.json"' in client.get("/docs/start.js").text
    assert client.get("/openapi.json").json()["paths"] == {}


def test_a_page_has_no_script_or_style_in_its_text_so_that_a_strict_policy_allows_it() -> None:
    app = app_of()
    serve_api_page(app)
    page = TestClient(app).get("/docs").text
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == ["", ""]
    assert "<style" not in page
    assert "style=" not in page


def test_the_document_is_found_below_a_prefix() -> None:
    app = FastAPI(title="shop", docs_url=None, redoc_url=None, openapi_url="/api.json")
    serve_api_page(app)
    assert 'url: "/shop/api.json"' in TestClient(app, root_path="/shop").get("/docs/start.js").text


def test_pages_from_a_cdn_are_refused() -> None:
    with pytest.raises(ValueError, match="docs_url=None"):
        serve_api_page(FastAPI())
    with pytest.raises(ValueError, match="no OpenAPI document"):
        serve_api_page(FastAPI(docs_url=None, redoc_url=None, openapi_url=None))
