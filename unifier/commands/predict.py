"""The command predict: labels or texts for files, folders, tables and lines."""

import argparse
from pathlib import Path

from unifier.commands.common import AddCommand, add_bad_inputs, add_inputs, add_model, open_model, write_utf8


def add_predict(add: AddCommand) -> None:
    """Add the command predict."""
    predict = add("predict", help="predict labels or texts for files, folders, tables and lines")
    add_model(predict)
    add_inputs(predict)
    predict.add_argument("--format", choices=("csv", "jsonl"), default="csv", help="the output's format (default: csv)")
    predict.add_argument("--out", metavar="FILE", type=Path, help="the output file (default: standard output)")
    predict.add_argument("--top-k", type=int, metavar="K", help="write the K most probable labels of each input")
    predict.add_argument(
        "--attention", metavar="DIR", type=Path, help="write a figure per input that shows where the model looked"
    )
    predict.add_argument(
        "--masks", metavar="DIR", type=Path, help="write a mask (PNG) per picture, if the model gives classes to pixels"
    )
    predict.add_argument(
        "--sounds",
        metavar="DIR",
        type=Path,
        help="the folder for the sound (WAV) of each text, if the model speaks (default: generated)",
    )
    add_bad_inputs(predict)
    predict.set_defaults(act=act_predict)


def act_predict(options: argparse.Namespace) -> None:
    """Write predictions to standard output or a file."""
    from unifier.inference.predict import PredictionOptions, open_output, write_predictions

    write_utf8()
    output = PredictionOptions(
        options.format, options.top_k, options.bad_inputs, options.attention, options.masks, options.sounds
    )
    model = open_model(options)
    task = model.choose_task(options.task)
    with open_output(options.out) as out:
        write_predictions(model, task, options.inputs, out, output)
