"""Tells clicks on the dashboard's own pages from requests that other web sites send."""

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

NOT_OWN_PAGE: Final = (
    "only a click on a page of this dashboard can do that, opened at an IP address or at localhost: other web sites "
    "must not cause faults or deal with dead letters"
)


def is_from_own_page(headers: Mapping[str, str]) -> bool:
    """Return whether a request was sent by the dashboard's own page.

    Browsers say so in `Sec-Fetch-Site`, which no script can set; older ones name the page's origin in `Origin`. The
    host must be an address or localhost: a site whose name somebody points at this machine would be of the same
    origin, too.

    Args:
        headers: The request's, by any case of their names.
    """
    host = headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name != "localhost" and not _is_address(name):
        return False
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return headers.get("origin", "") in (f"http://{host}", f"https://{host}")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


__all__ = ["NOT_OWN_PAGE", "is_from_own_page"]
