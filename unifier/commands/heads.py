"""The command heads: scores without each attention head."""

import argparse
from pathlib import Path

from unifier.commands.common import AddCommand, add_model, open_model, print_line


def add_heads(add: AddCommand) -> None:
    """Add the command heads."""
    heads = add("heads", help="score a trained run without each of its attention heads")
    add_model(heads)
    heads.add_argument(
        "--examples", type=int, metavar="N", default=200, help="the number of validation examples (default: 200)"
    )
    heads.add_argument(
        "--head",
        action="append",
        metavar="HEAD",
        default=[],
        help='leave out only this head, such as "cross 2.3" (may be repeated)',
    )
    heads.add_argument("--out", metavar="FILE", type=Path, help="also write the table to this file (.csv)")
    heads.set_defaults(act=act_heads)


def act_heads(options: argparse.Namespace) -> None:
    """Print the scores of a run without each attention head, and the heads that carry the agreement of words."""
    from rich.console import Console
    from rich.progress import track

    from unifier.console import print_rows
    from unifier.files import write_csv
    from unifier.inference.heads import describe_carrier, measure_heads, to_rows
    from unifier_tokenizers import InputError

    if options.examples < 1:
        raise InputError(f"examples={options.examples}: at least 1 example is needed")
    if options.out and not options.out.parent.is_dir():
        raise InputError(f"{options.out} cannot be written: the folder {options.out.parent} does not exist")
    model = open_model(options)
    measured = measure_heads(model, model.choose_task(options.task), options.examples, options.head)
    progress = Console(stderr=True)
    effects = list(track(measured, "heads", console=progress, transient=True, disable=not progress.is_terminal))
    print_rows(to_rows(effects))
    for category in effects[0].agreement:
        print_line(describe_carrier(effects, category))
    if options.out:
        write_csv(options.out, to_rows(effects))
