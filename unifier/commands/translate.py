"""The command translate: translations of lines."""

import argparse
import sys

from unifier.commands.common import AddCommand, add_model, open_model, write_utf8


def add_translate(add: AddCommand) -> None:
    """Add the command translate."""
    translate = add("translate", help="translate lines of text with a trained run")
    add_model(translate)
    translate.add_argument(
        "file", metavar="FILE", nargs="?", help="a text file, plain or gzipped, or - for standard input (the default)"
    )
    translate.add_argument(
        "--n-best", type=int, metavar="N", help="print N rows per line: line number, score and text, separated by tabs"
    )
    translate.add_argument(
        "--beam", type=int, metavar="W", help="the beam width; 1 means greedy (default: the run's value)"
    )
    translate.add_argument(
        "--length-penalty", type=float, metavar="A", help="divide scores by length ** A (default: the run's value)"
    )
    translate.add_argument("--sample", action="store_true", help="sample random translations, without beam search")
    translate.add_argument("--temperature", type=float, metavar="T", help="with --sample: the softmax temperature")
    translate.add_argument(
        "--top-k", type=int, metavar="K", help="with --sample: draw only from the K most probable tokens"
    )
    translate.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="with --sample: draw only from the most probable tokens, up to a total probability of P",
    )
    translate.add_argument("--seed", type=int, help="with --sample: the random seed (default: 0)")
    translate.add_argument(
        "--long",
        choices=("translate", "refuse"),
        default="translate",
        help="for lines longer than all training texts: translate with a warning, or stop (default: translate)",
    )
    translate.add_argument(
        "--candidates", type=int, metavar="K", help="print JSON Lines with the K most likely tokens of each step"
    )
    translate.add_argument("--to", metavar="LANGUAGE", help="the language to write, for a model of several languages")
    translate.add_argument("--attention", metavar="OUT.html", help="write the attention weights to an HTML page")
    translate.set_defaults(act=act_translate)


def act_translate(options: argparse.Namespace) -> None:
    """Translate a file or standard input line by line."""
    from contextlib import nullcontext
    from dataclasses import fields

    from unifier.inference.translate import AlignmentPage, DecodingOptions, open_input, translate
    from unifier.inference.translator import Translator

    write_utf8()
    decoding = DecodingOptions(**{field.name: getattr(options, field.name) for field in fields(DecodingOptions)})
    translator = Translator(
        open_model(options),
        task=options.task,
        align=bool(options.attention),
        candidates=decoding.candidates,
        to=options.to,
    )
    page = AlignmentPage(options.attention) if options.attention else nullcontext()
    with open_input(options.file) as file, page as alignments:
        name = "standard input" if options.file in (None, "-") else options.file
        translate(translator, file, name, sys.stdout, decoding, alignments)
