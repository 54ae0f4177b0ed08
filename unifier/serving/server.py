"""An HTTP server with the predictions of a model, and a page for people."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, final

import uvicorn
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from unifier.inference.model import Model
from unifier.serving.page import render_page
from unifier.serving.schema import Fault, Health, PredictAnswer, PredictRequest
from unifier.serving.service import PredictionService
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

LOGGER = logging.getLogger("uvicorn.error")

MAX_REQUEST_BYTES = 1 << 24
"""Maximum number of bytes of a request."""

MAX_SECONDS = 60.0
"""Maximum time of a request, from its first byte to its answer."""

MAX_REQUESTS = 64
"""Maximum number of requests that are read, waiting or computed at a time. Another request is refused."""

MAX_CONNECTIONS = 512
"""Maximum number of open connections."""

NUM_DECODERS = 2
"""Number of threads that decode pictures and sounds. A large picture needs half a gigabyte while it is decoded."""

LOOPBACK = "127.0.0.1"
"""The address that only programs on the same machine can reach."""

LOCAL_HOSTS = ("localhost", LOOPBACK, "::1", "[::1]")
"""The allowed Host headers of requests to a server that listens on a loopback address.

A page from elsewhere can reach the server under its own name if the name's address changes to 127.0.0.1 (DNS
rebinding). The browser would then let the page read the answers.
"""

FAULTS: dict[int | str, dict[str, Any]] = {
    400: {"model": Fault, "description": "The request is not valid JSON or not a valid form."},
    408: {"model": Fault, "description": "The request arrived too slowly."},
    413: {"model": Fault, "description": "The request is too large."},
    415: {"model": Fault, "description": "The request is neither JSON nor a form."},
    422: {"model": Fault, "description": "An option is wrong, or an input cannot be read."},
    500: {"model": Fault, "description": "The server failed."},
    503: {"model": Fault, "description": "The server is busy: send the request again later."},
}
"""The status codes of failed requests."""


@final
@dataclass(frozen=True)
class ServerOptions:
    """Options of the server."""

    host: str = LOOPBACK
    port: int = 8000
    """The port. 0 means any free port."""
    max_bytes: int = MAX_REQUEST_BYTES
    max_seconds: float = MAX_SECONDS
    max_requests: int = MAX_REQUESTS

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise InputError(f"port={self.port}: a number from 0 to 65535 is needed")
        for name in ("max_bytes", "max_seconds", "max_requests"):
            if not (value := getattr(self, name)) > 0:
                raise InputError(f"{name}={value}: a number above 0 is needed")


def listen(options: ServerOptions) -> socket.socket:
    """Return a socket that listens on the port of the options.

    Raises:
        InputError: The port is in use, or this machine has no such address.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        place = f"port {options.port} of {options.host}"
        raise InputError(f"{place} cannot be opened ({reason}): give another --port or --host") from error
    # Connections inherit the option. Without it, the body of an answer waits 40 ms for the receipt of the header.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve the application of `create_app` on the socket of `listen` until the process receives SIGINT or SIGTERM."""
    config = uvicorn.Config(app, log_level="warning", limit_concurrency=MAX_CONNECTIONS, server_header=False)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def create_app(model: Model, task: str | None = None, options: ServerOptions = ServerOptions()) -> FastAPI:
    """Return the application of a model.

    Args:
        model: The model.
        task: The only task that is served, or None for all tasks.
        options: The options of the server.

    Raises:
        InputError: The task is unknown, or none of the tasks reads texts, pictures or sounds.
    """
    service = PredictionService(model, task)
    page, policy = render_page(service, options.max_bytes)
    decoders = CapacityLimiter(NUM_DECODERS)
    num_requests = 0

    @asynccontextmanager
    async def close_service(_: FastAPI) -> AsyncGenerator[None]:
        yield
        service.close()

    # The pages /docs and /redoc would load scripts from elsewhere.
    app = FastAPI(title=f"unifier: {model.name}", docs_url=None, redoc_url=None, lifespan=close_service)

    if is_loopback(options.host):
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_HOSTS, www_redirect=False)

    @app.exception_handler(InputError)
    async def refuse(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": one_line(error)}, 422)

    @app.get("/", response_class=HTMLResponse)
    async def show_page() -> HTMLResponse:
        """Return the page for people."""
        headers = {"Content-Security-Policy": policy, "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(page, headers={**headers, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})

    @app.get("/health")
    async def health() -> Health:
        """Return the state of the server."""
        return Health(status="ok", model=model.name, tasks=service.kinds, requests=num_requests)

    body = {
        "application/json": {"schema": PredictRequest.model_json_schema()},
        "multipart/form-data": {"schema": _form_schema()},
    }

    @app.post(
        "/predict",
        responses=FAULTS,
        response_model_exclude_none=True,
        openapi_extra={"requestBody": {"required": True, "content": body}},
    )
    async def predict(request: Request) -> PredictAnswer:
        """Return predictions for a file or for the inputs in JSON."""
        nonlocal num_requests
        if num_requests >= options.max_requests:
            raise HTTPException(503, f"{num_requests} requests are waiting: send the request again later")
        num_requests += 1
        status = 408
        try:
            async with asyncio.timeout(options.max_seconds):
                asked, upload = await read_request(request, options.max_bytes)
                status = 503
                job = await to_thread.run_sync(service.prepare, asked, upload, limiter=decoders, abandon_on_cancel=True)
                return await asyncio.wrap_future(service.submit(job))
        except TimeoutError as error:
            what = "the request arrived too slowly" if status == 408 else "the prediction took too long"
            raise HTTPException(status, f"{what}: at most {options.max_seconds:g} seconds are possible") from error
        except (HTTPException, InputError):
            raise
        except Exception as error:
            # An unhandled error would close the connection, on which the client may have sent the next request.
            LOGGER.exception("a request failed")
            raise HTTPException(500, "the server failed; its terminal shows the reason") from error
        finally:
            num_requests -= 1

    return app


def is_loopback(host: str) -> bool:
    """Return True if only programs on the same machine can reach a host."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


async def read_request(request: Request, max_bytes: int) -> tuple[PredictRequest, tuple[str, bytes] | None]:
    """Read the body of a request: options and inputs, and the name and content of a file.

    Raises:
        HTTPException: The body is too large, incomplete, or neither JSON nor a form.
        InputError: An option is wrong.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            body = b"".join([block async for block in _limited(request, max_bytes)])
            return PredictRequest.model_validate_json(body), None
        if kind == "multipart/form-data":
            parser = MultiPartParser(request.headers, _limited(request, max_bytes), max_files=1, max_fields=8)
            form = await parser.parse()
            try:
                fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
                files = {name: value for name, value in form.multi_items() if isinstance(value, UploadFile)}
                if [*files] != ["file"]:
                    raise HTTPException(400, "the form needs one file in the field `file`")
                upload = Path(files["file"].filename or "file").name or "file", await files["file"].read()
            finally:
                await form.close()
            return PredictRequest.model_validate(fields), upload
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise HTTPException(
            400 if first["type"] == "json_invalid" else 422, f"{place or 'JSON'}: {first['msg']}"
        ) from error
    except (MultiPartException, ClientDisconnect, KeyError) as error:
        raise HTTPException(400, f"the form cannot be read: {one_line(error)}") from error
    raise HTTPException(415, "send JSON (application/json) or a form with a file (multipart/form-data)")


async def _limited(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the blocks of a body, up to a maximum number of bytes."""
    refusal = HTTPException(413, f"the request is too large: at most {max_bytes:,} bytes are possible")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > max_bytes:
        raise refusal
    size = 0
    async for block in request.stream():
        size += len(block)
        if size > max_bytes:
            raise refusal
        yield block


def _form_schema() -> dict[str, Any]:
    """Return the schema of a form: a file, and the options of `PredictRequest`."""
    options = PredictRequest.model_json_schema()["properties"]
    fields = {name: options[name] for name in ("task", "top_k", "explain")}
    return {
        "type": "object",
        "required": ["file"],
        "properties": {"file": {"type": "string", "format": "binary"}, **fields},
    }
