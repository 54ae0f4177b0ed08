"""The command neighbors: the nearest words in a table of words."""

import argparse
import sys

from unifier.commands.common import AddCommand, add_model, open_model, write_utf8


def add_neighbors(add: AddCommand) -> None:
    """Add the command neighbors."""
    neighbors = add("neighbors", help="print the nearest words in a model's table of words")
    add_model(neighbors)
    neighbors.add_argument(
        "words",
        metavar="WORD",
        nargs="+",
        help="a word, or an analogy such as king - man + woman; several are possible",
    )
    neighbors.add_argument("--count", type=int, metavar="N", default=10, help="the number of nearest words (10)")
    neighbors.add_argument(
        "--format", choices=("csv", "jsonl"), default="csv", help="the output's format (default: csv)"
    )
    neighbors.set_defaults(act=act_neighbors)


def act_neighbors(options: argparse.Namespace) -> None:
    """Print the nearest words of each word or analogy."""
    from unifier.inference.neighbors import VectorTable, parse_queries, write_neighbors

    write_utf8()
    queries = parse_queries(options.words)
    model = open_model(options)
    table = VectorTable(model, model.choose_task(options.task))
    write_neighbors(table, queries, sys.stdout, count=options.count, style=options.format)
