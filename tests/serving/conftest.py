"""Small models of each kind, and a server in a thread."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import uvicorn
from PIL import Image

from unifier import (
    ClassificationHead,
    FrameTokenizer,
    Mixture,
    Model,
    PatchTokenizer,
    SubwordTokenizer,
    TaggingHead,
    TranslationHead,
    Vocabulary,
    create_trunk,
)
from unifier.data.inputs import reader_of
from unifier.models.folder import ModelTask, StoredModel
from unifier.serving.server import ServerOptions, create_app, listen
from unifier_tokenizers import Audio

D = 16
VOCABULARY = Vocabulary.fit(["one two three", "four five six"], size=280)
LABELS = ["red", "green", "blue"]
SOUND = Audio(np.sin(np.arange(8000) / 9).astype(np.float32), 16000)

PARTS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "text": lambda: (SubwordTokenizer(VOCABULARY, D), ClassificationHead(LABELS, D)),
    "picture": lambda: (PatchTokenizer(D, class_token=True), ClassificationHead(LABELS, D, pooling="cls")),
    "sound": lambda: (FrameTokenizer(D, patch=(16, 16)).fit([SOUND]), TaggingHead(LABELS, D)),
    "translation": lambda: (SubwordTokenizer(VOCABULARY, D), TranslationHead(VOCABULARY, D, depth=1, heads=2)),
    "mixture": lambda: (
        Mixture({"caption": SubwordTokenizer(VOCABULARY, D), "image": PatchTokenizer(D)}),
        ClassificationHead(LABELS, D),
    ),
}


def make_model(*kinds: str) -> Model:
    """Return a model with one task per kind, whose random weights give clearly different answers."""
    torch.manual_seed(0)
    tasks: dict[str, ModelTask] = {}
    for kind in kinds:
        tokenizer, head = PARTS[kind]()
        for layer in (module for module in head.modules() if isinstance(module, torch.nn.Linear)):
            torch.nn.init.normal_(layer.weight)
        tasks[kind] = ModelTask(tokenizer, head, reader_of(None, tokenizer), longest=32)
    return Model(StoredModel("small", create_trunk("transformer", D, 1, 2, D), tasks, 64, {}), Path("model"))


def picture(seed: int) -> bytes:
    """Return a PNG file of random pixels and size."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (8 * int(rng.integers(1, 5)), 16, 3), np.uint8)
    Image.fromarray(pixels).save(file := BytesIO(), "PNG")
    return file.getvalue()


def sound(seed: int) -> bytes:
    """Return a WAV file of half a second of noise."""
    samples = np.random.default_rng(seed).normal(0, 0.1, 8000)
    soundfile.write(file := BytesIO(), samples, 16000, format="WAV")
    return file.getvalue()


@contextmanager
def running(model: Model, **options: Any) -> Generator[str]:
    """Serve a model in a thread, and yield the address."""
    settings = ServerOptions(port=0, **options)
    with listen(settings) as listener:
        server = uvicorn.Server(uvicorn.Config(create_app(model, options=settings), log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def model() -> Model:
    return make_model(*PARTS)


@pytest.fixture(scope="session")
def address(model: Model) -> Generator[str]:
    """Yield the address of a server with a task of every kind."""
    with running(model) as address:
        yield address
