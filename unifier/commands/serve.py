"""The command serve: predictions over HTTP."""

import argparse

from unifier.commands.common import AddCommand, add_model, open_model, print_line


def add_serve(add: AddCommand) -> None:
    """Add the command serve."""
    serve = add("serve", help="answer requests over HTTP, with a page for people")
    add_model(serve)
    serve.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, only this machine)"
    )
    serve.add_argument("--port", type=int, default=8000, help="the port; 0 means any free port (default: 8000)")
    serve.add_argument("--max-bytes", type=int, metavar="N", help="the maximum size of a request (default: 16 MiB)")
    serve.add_argument("--max-seconds", type=float, metavar="S", help="the maximum time of a request (default: 60)")
    serve.add_argument("--max-requests", type=int, metavar="N", help="the maximum number at a time (default: 64)")
    serve.set_defaults(act=act_serve)


def act_serve(options: argparse.Namespace) -> None:
    """Serve a model until Ctrl-C, and print the address of the page."""
    from unifier_tokenizers import InputError

    try:
        from unifier.serving.server import ServerOptions, create_app, listen, serve
    except ModuleNotFoundError as error:
        raise InputError(f'{error.name} is not installed: pip install "unifier-torch[serve]"') from error
    names = ("host", "port", "max_bytes", "max_seconds", "max_requests")
    settings = ServerOptions(**{name: value for name in names if (value := getattr(options, name)) is not None})
    with listen(settings) as listener:
        model = open_model(options)
        app = create_app(model, options.task, settings)  # The address is not printed for a model that is refused.
        host, port = listener.getsockname()[:2]
        print_line(f"serving {model.name} on http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C ends)")
        serve(app, listener)
