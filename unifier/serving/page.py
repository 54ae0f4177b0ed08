"""The page at /, with which people use a model in a browser."""

import json
from pathlib import Path

from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.masked_language_modeling import MASK
from unifier.heads.segmentation import SegmentationHead
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead
from unifier.heads.text_generation import TextGenerationHead
from unifier.report.content_policy import build_policy
from unifier.report.head_lines import head_lines_code
from unifier.serving.service import PredictionService

PAGE = Path(__file__).with_name("page.html")


def render_page(service: PredictionService, max_bytes: int) -> tuple[str, str]:
    """Return the page of a model, and the page's Content-Security-Policy.

    Args:
        service: The model with the tasks that are served.
        max_bytes: Maximum number of bytes of a request.
    """
    tasks = {
        name: {"input": kind, "output": _output(service, name), "hint": _hint(service, name)}
        for name, kind in service.kinds.items()
    }
    content = {"name": service.model.name, "tasks": tasks, "max_bytes": max_bytes}
    # In a script element, only "<" could end the element.
    data = json.dumps(content).replace("<", "\\u003c")
    page = PAGE.read_text(encoding="utf-8")
    page = page.replace("__HEAD_LINES__", head_lines_code(), 1).replace("__MODEL__", data, 1)
    return page, build_policy(page, connect_src="'self'")


def _hint(service: PredictionService, task: str) -> str:
    """Return the text of an empty field for texts."""
    is_marked = service.model.tasks[task].head.marked_text
    return f"Type a text with {MASK} in place of each word to predict" if is_marked else "Type or paste a text"


def _output(service: PredictionService, task: str) -> str:
    head = service.model.tasks[task].head
    kinds = {
        ClassificationHead: "label",
        TaggingHead: "tags",
        TextGenerationHead: "text",
        SegmentationHead: "mask",
        SpectrogramDecoderHead: "speech",
    }
    return next((kind for cls, kind in kinds.items() if isinstance(head, cls)), "answer")
