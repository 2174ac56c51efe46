"""Hooks of the documentation site: pages that live beside the code, links between them, and diagrams without a CDN.

`mkdocs.yml` names this file. The site holds each text once: a README of a member stays where its readers look for it,
and appears on the site under the address that `PAGES` gives it.
"""

import posixpath
import re
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[3]
PAGES = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "explanation/contributing.md",
    "SECURITY.md": "explanation/security.md",
    "sdk/README.md": "sdk/index.md",
    "broker/README.md": "broker/index.md",
    "analytics_spark/README.md": "lake/index.md",
    "demo/README.md": "example/index.md",
    "services/booking/README.md": "example/booking.md",
    "services/surge/README.md": "example/surge.md",
    "services/recommender/README.md": "example/recommender.md",
    "services/bike/README.md": "example/bike.md",
    "services/payment/README.md": "example/payment.md",
    "services/payment-provider/README.md": "example/payment-provider.md",
    "services/dashboard/README.md": "example/dashboard.md",
    "services/logger/README.md": "example/logger.md",
    "tests/conformance/deviations.md": "broker/deviations.md",
}
"""Where the site shows a file that lies outside of `docs`."""

MERMAID = "assets/mermaid.js"
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)\s*?$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<code>`+[^`]*`+)|(?P<bang>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of `PAGES` and the script that draws diagrams."""
    for source, address in PAGES.items():
        files.append(File.generated(config, address, abs_src_path=str(ROOT / source)))
    script = package_files("mermaidx") / "assets" / "mermaid.js"
    files.append(File.generated(config, MERMAID, content=script.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page at the pages of the site."""
    del config
    sources = {address: source for source, address in PAGES.items()}
    address = page.file.src_uri
    return with_site_links(markdown, source=sources.get(address, f"docs/{address}"), address=address, files=files)


def on_page_context(context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Any) -> None:  # Any: mkdocs' own
    """Load the diagram script on pages that have a diagram, instead of Material's download of it."""
    del nav
    has_diagram = 'class="mermaid"' in (page.content or "")
    scripts = [script for script in config.extra_javascript if str(script) != MERMAID]
    config.extra_javascript = [*scripts, MERMAID] if has_diagram else scripts
    del context


def with_site_links(markdown: str, *, source: str, address: str, files: Files) -> str:
    """Return the text with its links rewritten from files of the repository to pages of the site.

    A link to a file that the site does not hold, such as a module, becomes its text. A link to a file that does not
    exist stays as it is, and the strict build reports it.
    """

    def link(found: re.Match[str]) -> str:
        target, _, anchor = (found["target"] or "").partition("#")
        if found["code"] or not target or "://" in target or target.startswith(("mailto:", "/")):
            return found[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        page = PAGES.get(wanted, wanted.removeprefix("docs/") if wanted.startswith("docs/") else None)
        if page is None or files.get_file_from_path(page) is None:
            return found["text"] if (ROOT / wanted).exists() else found[0]
        relative = posixpath.relpath(page, posixpath.dirname(address) or ".")
        return f"{found['bang']}[{found['text']}]({relative}{'#' if anchor else ''}{anchor})"

    written, position = [], 0
    for fence in _FENCE.finditer(markdown):
        written += [_LINK.sub(link, markdown[position : fence.start()]), fence[0]]
        position = fence.end()
    return "".join([*written, _LINK.sub(link, markdown[position:])])
