"""The Content-Security-Policy of HTML pages: a page loads nothing, and runs only the code that we wrote."""

import base64
import re
from hashlib import sha256

CHARSET = '<meta charset="utf-8">\n'


def add_policy(page: str) -> str:
    """Insert a Content-Security-Policy behind the charset of a page.

    Pictures and sounds must be data URLs. Styles and scripts are allowed by their hash. Style attributes are allowed,
    because the policy lets no style load anything.
    """
    meta = f'<meta http-equiv="Content-Security-Policy" content="{build_policy(page)}">\n'
    return page.replace(CHARSET, CHARSET + meta, 1)


def build_policy(page: str, connect_src: str = "'none'") -> str:
    """Return the Content-Security-Policy of a page.

    Args:
        page: The page, with `<style>` and `<script>` elements without attributes.
        connect_src: The servers to which the page's script may send requests.
    """
    policy = ["default-src 'none'", "base-uri 'none'", "form-action 'none'", "img-src data:", "media-src data:"]
    policy.append(f"connect-src {connect_src}")
    for name in ("style", "script"):
        hashes = [_hash_source(text) for text in re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)]
        policy.append(" ".join([f"{name}-src", *(hashes or ["'none'"])]))
    policy.append("style-src-attr 'unsafe-inline'")
    return "; ".join(policy)


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
