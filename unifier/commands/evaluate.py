"""The command evaluate: scores of a trained model on new labeled data."""

import argparse
from pathlib import Path

from unifier.commands.common import AddCommand, add_bad_inputs, add_model, open_model, print_line
from unifier.files import check_output_folder


def add_evaluate(add: AddCommand) -> None:
    """Add the command evaluate."""
    evaluate = add("evaluate", help="score a trained model on new labeled data")
    add_model(evaluate)
    evaluate.add_argument(
        "data",
        metavar="DATA",
        help="a folder with one folder per class, a table with a column label, pairs of texts (a.tsv or a.en,a.de), "
        "a file with a word and its label per line, or a folder with the folders images and masks",
    )
    evaluate.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("evaluation"), help="the output folder (default: evaluation)"
    )
    evaluate.add_argument("--languages", metavar="A,B", help="the two languages of a translation memory (.tmx)")
    add_bad_inputs(evaluate)
    evaluate.set_defaults(act=act_evaluate)


def act_evaluate(options: argparse.Namespace) -> None:
    """Print the scores on labeled data, and write evaluation.json and evaluation.html."""
    from unifier.inference.evaluate import describe_score, evaluate, write_evaluation
    from unifier_tokenizers import InputError

    check_output_folder(options.out)
    source, _, target = (options.languages or "").partition(",")
    if options.languages and not (source and target):
        raise InputError(f"languages={options.languages}: two languages are expected, such as en,de")
    model, languages = open_model(options), (source, target) if options.languages else None
    task = model.choose_task(options.task)
    evaluation, content = evaluate(model, task, options.data, bad_inputs=options.bad_inputs, languages=languages)
    page = write_evaluation(options.out, evaluation, content)
    for name, score in content["scores"].items():
        print_line(describe_score(name, score))
    print_line(page)
