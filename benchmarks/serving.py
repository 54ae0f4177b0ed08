"""Measure the latency and the throughput of servers that classify pictures: `python -m benchmarks.serving`."""

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import requests
import torch
from PIL import Image

from benchmarks.runner.tables import publish_section, table_header, table_row

ROOT = Path(__file__).parents[1]
NUM_CLIENTS = 16
NUM_REQUESTS = {1: 200, NUM_CLIENTS: 800}
"""Mapping from the number of clients to the number of measured requests."""
SIDE, PATCH, DIM, DEPTH, HEADS, LABELS = 32, 4, 128, 4, 4, 10


def create_our_app() -> Any:
    """Create the server of unifier."""
    from unifier import ClassificationHead, Model, PatchTokenizer, create_trunk
    from unifier.data.inputs import ImageReader
    from unifier.models.folder import ModelTask, StoredModel
    from unifier.serving.server import create_app

    head = ClassificationHead([str(label) for label in range(LABELS)], DIM)
    task = ModelTask(PatchTokenizer(DIM, patch=PATCH), head, ImageReader(), longest=(SIDE // PATCH) ** 2)
    trunk = create_trunk("transformer", DIM, DEPTH, HEADS, 4 * DIM)
    return create_app(Model(StoredModel("pictures", trunk, {"pictures": task}, 4096, {}), Path("model")))


def create_our_app_without_batching() -> Any:
    """Create the server of unifier, which computes every request alone."""
    from unifier.serving import batching

    batching.MAX_BATCH_JOBS = 1  # pyright: ignore[reportConstantRedefinition]
    return create_our_app()


def create_transformers_app() -> Any:
    """Create a server with the pipeline of transformers and a ViT of the same size."""
    from fastapi import FastAPI, UploadFile
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, pipeline

    sizes: dict[str, Any] = {"hidden_size": DIM, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS}
    sizes |= {"intermediate_size": 4 * DIM, "image_size": SIDE, "patch_size": PATCH, "num_labels": LABELS}
    processor = ViTImageProcessor(size={"height": SIDE, "width": SIDE})
    classify: Any = pipeline(
        "image-classification", model=ViTForImageClassification(ViTConfig(**sizes)).eval(), image_processor=processor
    )
    app = FastAPI()

    @app.post("/predict")
    def predict(file: UploadFile) -> Any:
        return classify(Image.open(file.file).convert("RGB"), top_k=LABELS)

    return app


SERVERS: dict[str, Callable[[], Any]] = {
    "**unifier serve**": create_our_app,
    "unifier serve without batching": create_our_app_without_batching,
    "transformers' pipeline and FastAPI": create_transformers_app,
}


def serve(name: str) -> None:
    """Run a server that computes on one thread, and print its port."""
    import uvicorn

    from unifier.serving.server import ServerOptions, listen

    torch.manual_seed(0)
    torch.set_num_threads(1)
    with listen(ServerOptions(port=0)) as listener:
        app = SERVERS[name]()
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def measure(name: str) -> tuple[float, float]:
    """Return the median latency of one client in seconds, and the requests per second of `NUM_CLIENTS` clients."""
    rng = np.random.default_rng(0)
    files = [BytesIO() for _ in range(20)]
    for file in files:
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(file, "PNG")
    local = threading.local()

    def send(number: int) -> float:
        if not hasattr(local, "session"):
            local.session = requests.Session()
        start = time.perf_counter()
        content = files[number % len(files)].getvalue()
        response = local.session.post(url, files={"file": ("picture.png", content)}, timeout=60)
        response.raise_for_status()
        return time.perf_counter() - start

    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.serving", "--serve", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout
            url = f"http://127.0.0.1:{int(process.stdout.readline())}/predict"
            with ThreadPoolExecutor(NUM_CLIENTS) as clients:
                list(clients.map(send, range(5 * NUM_CLIENTS)))  # Warm-up
                latency = median(map(send, range(NUM_REQUESTS[1])))
                start = time.perf_counter()
                list(clients.map(send, range(NUM_REQUESTS[NUM_CLIENTS])))
                return latency, NUM_REQUESTS[NUM_CLIENTS] / (time.perf_counter() - start)
        finally:
            process.terminate()


def main() -> None:
    """Measure all servers, and write the table into README.md."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--serve", choices=SERVERS, help="only run this server")
    if name := parser.parse_args().serve:
        serve(name)
        return
    lines = [table_header(["server", "latency of one client, ms", f"requests per second of {NUM_CLIENTS} clients"])]
    for name in SERVERS:
        latency, rate = measure(name)
        lines.append(table_row([name, f"{1000 * latency:.1f}", f"{rate:,.0f}"]))
    publish_section("serving", "\n".join(lines))


if __name__ == "__main__":
    main()
