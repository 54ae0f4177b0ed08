"""The command embed: one vector per input."""

import argparse
from pathlib import Path

from unifier.commands.common import AddCommand, add_bad_inputs, add_inputs, add_model, open_model
from unifier.files import print_status


def add_embed(add: AddCommand) -> None:
    """Add the command embed."""
    embed = add("embed", help="write one vector per input: the mean output of a layer")
    add_model(embed)
    add_inputs(embed)
    embed.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        required=True,
        help="a .npy file, with names in a .names.csv file, or .parquet",
    )
    embed.add_argument("--layer", metavar="NAME", help="the layer, such as blocks.0 (default: the last layer)")
    add_bad_inputs(embed)
    embed.set_defaults(act=act_embed)


def act_embed(options: argparse.Namespace) -> None:
    """Write the vectors of inputs to a file."""
    from unifier.inference.embed import write_vectors

    model = open_model(options)
    task = model.choose_task(options.task)
    count = write_vectors(model, task, options.inputs, options.out, layer=options.layer, bad_inputs=options.bad_inputs)
    print_status(f"{options.out}: {count:,} vectors")
