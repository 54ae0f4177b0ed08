"""The command generate: continued texts, pictures, tunes and sounds."""

import argparse
import sys
from pathlib import Path

from unifier.commands.common import AddCommand, add_model, open_model, print_line, write_utf8
from unifier.files import printable


def add_generate(add: AddCommand) -> None:
    """Add the command generate."""
    generate = add("generate", help="continue a text with a language model")
    add_model(generate)
    generate.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="?",
        default="",
        help="the start of the text, or the path of a picture, a MIDI file or a sound (default: none)",
    )
    generate.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="the number of new tokens of a text (at most 500), steps of a tune (96) or samples of a sound (4,000)",
    )
    generate.add_argument("--temperature", type=float, metavar="T", default=1.0, help="the softmax temperature (1)")
    generate.add_argument("--top-k", type=int, metavar="K", help="draw only from the K most probable tokens")
    generate.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        default=1.0,
        help="draw only from the most probable tokens, up to a total probability of P",
    )
    generate.add_argument("--seed", type=int, default=0, help="the random seed; equal seeds give equal texts (0)")
    generate.add_argument(
        "--out", metavar="DIR", type=Path, help="the folder for pictures, tunes and sounds (default: generated)"
    )
    generate.add_argument("--count", type=int, metavar="N", help="the number of pictures, tunes or sounds (1)")
    generate.add_argument(
        "--keep", type=float, metavar="SHARE", help="the upper share of a given picture that is kept (0.5)"
    )
    generate.set_defaults(act=act_generate)


def act_generate(options: argparse.Namespace) -> None:
    """Print a prompt and its continuation, token by token. Pictures and tunes are written into files."""
    from dataclasses import fields

    from unifier.inference.generate import GenerationOptions, generate
    from unifier.inference.generated_files import FileOptions, generate_files, generates_files
    from unifier_tokenizers import InputError

    write_utf8()
    sampling = GenerationOptions(**{field.name: getattr(options, field.name) for field in fields(GenerationOptions)})
    given = {name: value for name in ("count", "keep") if (value := getattr(options, name)) is not None}
    files = FileOptions(options.out or Path("generated"), **given)
    model = open_model(options)
    task = model.choose_task(options.task)
    if generates_files(model, task):
        for path in generate_files(model, task, options.prompt, sampling, files):
            print_line(str(path))
        return
    if options.out is not None or given:
        raise InputError(
            "out, count and keep are for pictures, tunes and sounds, but a text is printed: leave them out"
        )
    for text in generate(model, task, options.prompt, sampling):
        sys.stdout.write(printable(text, keep="\n\t"))
        sys.stdout.flush()
    print_line("")
