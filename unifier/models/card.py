"""The model card: a README.md that says what a model does, how to use it, and what is known about it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unifier.augmentation.image import ImageViews
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.masked_language_modeling import MASK, MaskedLanguageModelingHead
from unifier.models.config import class_path, is_own
from unifier.models.folder import ModelTask, StoredModel
from unifier.models.preprocessing import Names, describe_preprocessing
from unifier.models.tags import pipeline_tag, run_tags
from unifier.plugins import plugin_package
from unifier_tokenizers import (
    ItemTokenizer,
    Mixture,
    PatchTokenizer,
    PianoRollTokenizer,
    PixelTokenizer,
    PretrainedTextTokenizer,
    SampleTokenizer,
    SeriesTokenizer,
    SubwordTokenizer,
    Tokenizer,
    VideoTokenizer,
    VoiceTokenizer,
    WordTokenizer,
)
from unifier_tokenizers.audio import AudioTokenizer

INPUTS = {
    SubwordTokenizer: ("a text", '"a text"'),
    WordTokenizer: ("a text", '"a text"'),
    PretrainedTextTokenizer: ("a text", '"a text"'),
    PatchTokenizer: ("a picture", '"picture.png"'),
    PixelTokenizer: ("a picture", '"picture.png"'),
    VideoTokenizer: ("a clip", '"clip.gif"'),
    AudioTokenizer: ("a sound", '"sound.wav"'),
    SampleTokenizer: ("a sound", '"sound.wav"'),
    PianoRollTokenizer: ("a piece of music", "[[60, 64], [62]]"),
    VoiceTokenizer: ("a piece in several voices", "[[72, 67, 64, 48], [74, 67, None, 48]]"),
    ItemTokenizer: ("a sequence of items", "[3, 17]"),
}
"""The noun of each modality, and an example of its input in Python."""


def write_card(model: StoredModel) -> str:
    """Return the text of a model card in Markdown, with the front matter of the Hugging Face hub."""
    tasks = model.tasks
    sections = {
        "## Use": _use(model),
        **describe_origin(model),
        "## Preprocessing": [
            "`predict` prepares its inputs as in training. These are the steps, for use without unifier. B is the "
            "batch size, and N is the number of tokens. Shorter examples of a batch are padded: values with 0, and "
            "positions with -1.",
            *(line for task in tasks for line in _preprocessing(task, tasks[task])),
        ],
    }
    return join_sections(model, sections)


def join_sections(model: StoredModel, sections: Mapping[str, Sequence[str]]) -> str:
    """Return a card: the front matter, the title, the tasks, and sections of lines, keyed by heading."""
    parts = {f"# {_plain(model.name)}": [_describe_task(*item) for item in model.tasks.items()], **sections}
    body = "\n\n".join("\n\n".join((title, "\n".join(lines))) for title, lines in parts.items())
    return f"{_front_matter(model.tasks)}\n\n{body}\n"


def describe_origin(model: StoredModel) -> dict[str, list[str]]:
    """Return the sections with the scores, the training and the limits of a model."""
    tasks, facts = model.tasks, model.facts
    return {
        "## Scores": _scores(model),
        "## Training": _training(facts),
        "## Limits": [f"- {limit}" for task in tasks for limit in _limits(task, tasks[task], facts["data"][task])],
    }


def _front_matter(tasks: Mapping[str, ModelTask]) -> str:
    """Return the metadata that the hub reads. The license of the model is the owner's choice, and is left out."""
    tags = dict.fromkeys(["unifier", *run_tags(tasks.values())])
    pipeline = pipeline_tag(tasks.values())
    lines = ["library_name: unifier", *([f"pipeline_tag: {pipeline}"] if pipeline else []), "tags:"]
    return "\n".join(["---", *lines, *(f"- {tag}" for tag in tags), "---"])


def _describe_task(name: str, task: ModelTask) -> str:
    """Return one item of a list: the input and the answer of a task in words."""
    return f"- **{_plain(name)}** {_plain(task.head.describe_task(_input(task.tokenizer)[0]))}"


def _input(tokenizer: Tokenizer) -> tuple[str, str]:
    """Return the noun and a Python example of a tokenizer's input."""
    if isinstance(tokenizer, Mixture):
        members = {name: _input(member) for name, member in tokenizer.members.items()}
        nouns = " and ".join(f"{noun} ({name})" for name, (noun, _) in members.items())
        return nouns, f"{{{', '.join(f'{_quote(name)}: {example}' for name, (_, example) in members.items())}}}"
    if isinstance(tokenizer, SeriesTokenizer):
        return "a window of a time series", f"[[0.5] * {tokenizer.context}]"
    for kind, described in INPUTS.items():
        if isinstance(tokenizer, kind):
            return described
    return f"an input of `{type(tokenizer).__name__}`", "value"


def _use(model: StoredModel) -> list[str]:
    name, task = next(iter(model.tasks.items()))
    parts = [model.trunk, *(part for task in model.tasks.values() for part in (task.tokenizer, task.head))]
    others = {type(part): plugin_package(type(part)) for part in parts if not is_own(class_path(type(part)))}
    own = [cls.__name__ for cls, package in others.items() if package is None]
    packages = ["unifier-torch", *dict.fromkeys(package for package in others.values() if package is not None)]
    classes = f", classes=[{', '.join(own)}]" if own else ""
    chosen = f", task={_quote(name)}" if len(model.tasks) > 1 else ""
    example = f'"a {MASK} text"' if isinstance(task.head, MaskedLanguageModelingHead) else _input(task.tokenizer)[1]
    if isinstance(task.tokenizer, SubwordTokenizer) and task.tokenizer.known_characters:
        known = task.tokenizer.vocabulary.characters
        example = _quote(" ".join((*task.tokenizer.codes[:1], *"".join(known).strip()[:3])))
    method = "embed" if task.head.missing_prediction else "predict"
    return [
        "```python",
        f"import unifier as uf  # pip install {' '.join(packages)}",
        f'model = uf.load("path/to/this/folder"{classes})  # or "hub:USER/NAME"',
        f"print({'*' if method == 'embed' else ''}model.{method}([{example}]{chosen}))",
        "```",
        *(["", f"The classes {', '.join(own)} are in no installed package."] if own else []),
    ]


def _scores(model: StoredModel) -> list[str]:
    facts = model.facts
    errors = {f"test/{task}/{name}" for task, part in model.tasks.items() for name in part.head.lower_is_better}
    rows = ["| metric | score | 95 % interval | method | test examples |", "|---|---|---|---|---|"]
    for metric, score in facts["scores"].items():
        interval = facts["intervals"].get(metric)
        ends, method = ("-", "not computed") if interval is None else (_range(interval), interval["method"])
        title = f"{metric} (lower is better)" if metric in errors else metric
        rows.append(f"| {_cell(title)} | {float(score):.2f} | {ends} | {method} | {_examples(facts, metric)} |")
    method = (
        "The intervals are over test examples: they say how far the score may be from the score on many more examples "
        "of the same kind. They do not contain the variation between training runs."
    )
    return [*rows, "", method] if facts["intervals"] else rows


def _range(interval: Mapping[str, Any]) -> str:
    return f"{interval['low']:.2f} to {interval['high']:.2f}"


def _examples(facts: Mapping[str, Any], metric: str) -> str:
    """Return the number of scored test examples of the task in a metric's name "test/<task>/<metric>"."""
    data = facts["data"].get(metric.removeprefix("test/").rpartition("/")[0])
    return "-" if data is None else f"{data['test'] - data['skipped'].get('test', 0):,}"


def _training(facts: Mapping[str, Any]) -> list[str]:
    rows = ["| | |", "|---|---|"]
    for task, data in facts["data"].items():
        sizes = ", ".join(f"{data[split]:,} {split}" for split in ("train", "val", "test"))
        license = data.get("license", "not stated")
        rows.append(f"| data of {_cell(task)} | {_cell(data['name'])}: {sizes} examples |")
        rows.append(f"| its SHA-256 | `{data['sha256']}` |")
        rows.append(f"| its license | {_cell(license)} |")
    budget = {name: _amount(value) for name, value in facts["budget"].items()}
    for name in ("parameters", "settings", "versions"):
        rows.append(f"| {name} | {_cell(facts[name])} |")
    rows += [f"| budget | {_cell(budget)} |", f"| seed | {facts['seed']} |"]
    return [*rows, *_lineage(facts.get("lineage", {}))]


def describe_start(lineage: Mapping[str, Any]) -> str:
    """Return the name of the trained model from which a run started, and the parts that the run took over."""
    kinds = {kind: ", ".join(lineage.get(kind, ())) for kind in ("tokenizers", "heads")}
    parts = ["trunk", *(f"{kind} of {tasks}" for kind, tasks in kinds.items() if tasks)]
    return f"{lineage['start']} ({'; '.join(parts)})"


def _lineage(lineage: Mapping[str, Any]) -> Iterable[str]:
    """Yield rows with the trained models that the run used, and with the cost of their training."""
    if "start" in lineage:
        yield f"| started from | {_cell(describe_start(lineage))} |"
        yield f"| SHA-256 of its weights | `{lineage['sha256']}` |"
    if "teachers" in lineage:
        yield f"| teachers | {_cell(', '.join(lineage['teachers']))} |"
    if cost := lineage.get("pretraining"):
        yield f"| budget of its training | {_cell({name: _amount(value) for name, value in cost.items()})} |"


def _amount(value: Any) -> str:
    number = float(value)
    if not 1 <= number < 1e9:
        return f"{number:.3g}"
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def _limits(name: str, task: ModelTask, data: Mapping[str, Any]) -> Iterable[str]:
    start = f"**{_plain(name)}**: "
    if isinstance(task.head, ClassificationHead | TaggingHead):
        yield f"{start}The labels are fixed. An input of another kind gets one too, often with a high probability."
    yield f"{start}The only input is {_input(task.tokenizer)[0]}."
    yield f"{start}The longest training input had {task.longest:,} tokens. Longer inputs were never seen in training."
    yield (
        f"{start}The scores were measured only on the test split of {_plain(data['name'])}. Scores on other data, from "
        "other cameras, microphones or authors, may be much lower."
    )
    if "copies" in data:
        yield f"{start}{data['copies']:,} val and test examples are copies of train examples: the scores are too high."


def _preprocessing(name: str, task: ModelTask) -> Iterable[str]:
    yield from ("", f"### {_plain(name)}", "")
    steps = describe_preprocessing(task.tokenizer, task.reader, Names(f"tokenizers.{name}"))
    yield from (f"{number}. {step}" for number, step in enumerate((*steps, *_answer(task)), start=1))


def _answer(task: ModelTask) -> Iterable[str]:
    """Yield the steps from the model's output to the answer."""
    if isinstance(task.tta, ImageViews):
        yield f"The probabilities are averaged over {task.tta.num_crops} views of the picture, mirrored or shifted."
    if answer := task.head.describe_answer():
        yield _plain(answer)


def _quote(text: str) -> str:
    """Return a text as a Python literal with double quotes."""
    return json.dumps(text, ensure_ascii=False)


def _cell(value: object) -> str:
    """Return a value as one cell of a table."""
    text = ", ".join(f"{name}={item}" for name, item in value.items()) if isinstance(value, Mapping) else str(value)
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Return a text in one line without HTML, because a label or a file name may contain any characters."""
    return " ".join(text.split()).replace("<", "&lt;")
