"""Lines between words for one attention head, with a layer and a head to choose. All pages share this element."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, final


@final
@dataclass(frozen=True)
class LayerLines:
    """The attention between the tokens of texts, for each head of a layer."""

    name: str
    """The part and the number of the layer. See `AttentionHead` in unifier.analysis."""
    queries: list[str]
    """The tokens that attend."""
    keys: list[str]
    """The tokens that receive attention."""
    heads: list[list[list[float]]]
    """The weights (heads, queries, keys)."""


def visible_token(token: str) -> str:
    """Return the text of a token on a page. The script of the element has the same rule."""
    return "(end)" if token in ("</s>", "<eos>") else token or "␣"


def head_lines_code() -> str:
    """Return the style and the script of the element, which a page needs once."""
    return Path(__file__).with_name("head_lines.html").read_text(encoding="utf-8")


def render_head_lines(layers: Sequence[Mapping[str, Any]]) -> str:
    """Return the element for the layers of one input, or "" without layers.

    Args:
        layers: The fields of each `LayerLines`. Other keys are ignored.
    """
    data = json.dumps(layers, ensure_ascii=False)
    return f'<div data-layers="{escape(data)}"></div>\n' if layers else ""
