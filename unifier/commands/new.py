"""The command new, for a package with a part of your own."""

import argparse

from unifier.commands.common import AddCommand, print_line


def add_new(add: AddCommand) -> None:
    """Add the command new."""
    new = add("new", help="write a small package with a tokenizer, a head or a source of your own")
    new.add_argument("kind", choices=("tokenizer", "head", "source"), help="the kind of part")
    new.add_argument("name", metavar="NAME", help="the name of the package, such as my_series")
    new.set_defaults(act=act_new)


def act_new(options: argparse.Namespace) -> None:
    """Write a package, and print its folder."""
    from unifier.inference.new_package import write_package

    print_line(write_package(options.kind, options.name))
