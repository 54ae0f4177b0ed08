"""Inputs, and a server in a thread."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import uvicorn
from PIL import Image

from tests.small_models import small_model
from unifier import Model
from unifier.serving.server import ServerOptions, create_app, listen

KINDS = ("text", "picture", "sound", "translation", "mixture")


def make_model(*kinds: str) -> Model:
    """Return a model with one task per kind."""
    return Model(small_model(*kinds, longest=32), Path("model"))


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
    return make_model(*KINDS)


@pytest.fixture(scope="session")
def address(model: Model) -> Generator[str]:
    """Yield the address of a server with a task of every kind."""
    with running(model) as address:
        yield address
