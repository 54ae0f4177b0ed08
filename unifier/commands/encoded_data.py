"""The commands pack and clean, for encoded data in shards and in the cache."""

import argparse

from unifier.commands.common import AddCommand, add_experiment, parse_settings, print_line


def add_pack_and_clean(add: AddCommand) -> None:
    """Add the commands pack and clean."""
    pack = add("pack", help="encode the data of an experiment into shards, for data=packed:DIR")
    add_experiment(pack)
    pack.add_argument("folder", metavar="DIR", help="an empty folder, or a URL that fsspec can write")
    pack.add_argument(
        "settings", nargs="*", default=[], metavar="key=value", help="keyword arguments of the experiment's function"
    )
    pack.add_argument("--task", metavar="NAME", help="the task of an experiment with several tasks")
    pack.add_argument("--shard-mb", type=float, default=128.0, metavar="MB", help="the size of a shard (default: 128)")
    pack.add_argument(
        "--window", type=int, default=8, metavar="N", help="the shards among which training shuffles (default: 8)"
    )
    pack.add_argument("--data", metavar="DIR", help="the folder of data sets (default: $UNIFIER_DATA)")
    pack.set_defaults(act=act_pack)

    clean = add("clean", help="print the size of the cache of encoded data, or clear the cache")
    clean.add_argument("--yes", action="store_true", help="delete all entries of the cache")
    clean.set_defaults(act=act_clean)


def act_pack(options: argparse.Namespace) -> None:
    """Pack the data of an experiment, and print a line that describes the result."""
    from unifier.data.source import use_data_folder
    from unifier.inference.pack import pack_experiment

    with use_data_folder(options.data):
        line = pack_experiment(
            options.experiment,
            options.folder,
            parse_settings(options.settings),
            task=options.task,
            shard_mb=options.shard_mb,
            window=options.window,
        )
    print_line(line)


def act_clean(options: argparse.Namespace) -> None:
    """Print the size of the cache. With --yes, delete all entries."""
    from unifier.inference.clean import clear_cache, measure_cache

    cache = measure_cache()
    print_line(f"{cache.folder}: {cache.entries:,} entries, {cache.size / 1e6:,.1f} MB")
    if options.yes:
        deleted = clear_cache()
        print_line(f"deleted {deleted.entries:,} entries, {deleted.size / 1e6:,.1f} MB")
    elif cache.entries:
        print_line("to delete them, run unifier clean --yes; a later run encodes its data again")
