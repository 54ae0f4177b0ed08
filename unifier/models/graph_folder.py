"""The folder of an exported graph: the graph's files, vocabularies, preprocessing.json and a card."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from unifier.files import write_json, write_text
from unifier.heads.head import Head
from unifier.heads.text_generation import TextGenerationHead, max_target_length
from unifier.models.card import describe_origin, join_sections
from unifier.models.folder import CARD_FILE, StoredModel
from unifier.models.graph import Graph, check_onnx_packages, trace_graphs
from unifier.models.preprocessing import (
    FACTS_FILE,
    INPUT_VOCABULARY,
    Names,
    describe_preprocessing,
    member_vocabulary,
)
from unifier.models.preprocessing_facts import preprocessing_facts
from unifier.network import Network
from unifier_tokenizers import InputError, Mixture, Tokenizer
from unifier_tokenizers.configurable import StoredFile
from unifier_tokenizers.errors import check_choice
from unifier_tokenizers.subwords import BOS, EOS

GraphFormat = Literal["torch", "onnx"]

SUFFIXES: Mapping[GraphFormat, str] = {"torch": ".pt2", "onnx": ".onnx"}

OUTPUT_VOCABULARY = "output_vocabulary.json"

LOADING: Mapping[GraphFormat, Sequence[str]] = {
    "torch": (
        "import torch  # {torch}",
        '{name} = torch.export.load("{file}").module()',
        "{outputs} = {name}({inputs})  # torch tensors",
    ),
    "onnx": (
        "import onnxruntime  # pip install onnxruntime",
        '{name} = onnxruntime.InferenceSession("{file}")',
        "{outputs} = {name}.run(None, {feed})  # NumPy arrays",
    ),
}
"""Code that runs one graph, for each format."""


def write_graphs(model: StoredModel, folder: Path, form: GraphFormat, task: str | None = None) -> None:
    """Write the graphs of one task into an empty folder, with everything that a program without unifier needs.

    Args:
        model: The trained model.
        folder: The folder.
        form: "torch" for files of `torch.export`, or "onnx".
        task: The name of the task. The name is required if the model has several tasks.

    Raises:
        InputError: The task is unknown, a part of the model cannot be exported, or a package is missing.
    """
    if form == "onnx":
        check_onnx_packages()
    if task is None and len(model.tasks) > 1:
        raise InputError(
            f"the model has several tasks, and a graph has one: set `task` to one of {', '.join(model.tasks)}"
        )
    task = check_choice("task", task or next(iter(model.tasks)), tuple(model.tasks))
    part = model.tasks[task]
    Network(model.trunk, {task: part}).eval().requires_grad_(False)
    graphs = trace_graphs(model.trunk, part)
    files = {name: f"{name}{SUFFIXES[form]}" for name in graphs}
    for name, graph in graphs.items():
        (graph.save_torch if form == "torch" else graph.save_onnx)(folder / files[name])
    for name, vocabulary in _input_vocabularies(part.tokenizer).items():
        vocabulary.save(folder / name)
    if isinstance(part.head, TextGenerationHead):
        part.head.vocabulary.save(folder / OUTPUT_VOCABULARY)
    steps = [
        *describe_preprocessing(part.tokenizer, part.reader, Names()),
        "Stack the examples of a batch. Pad the shorter examples at the end: values with 0, positions with -1. `mask` "
        "(bool, batch x N) is true for real tokens and false for padding.",
    ]
    answer = [*_answer(part.head)]
    if part.tta is not None:
        answer.append("The graph averages the probabilities over the views of its test-time augmentation.")
    described = {name: {"file": files[name], **_describe_graph(graph)} for name, graph in graphs.items()}
    facts = {
        "format": 1,
        "unifier": version("unifier-torch"),
        "name": model.name,
        "task": task,
        "graphs": described,
        "input": preprocessing_facts(part.tokenizer, part.reader),
        "steps": steps,
        "output": _output_facts(part.head),
        "answer": answer,
    }
    write_json(folder / FACTS_FILE, facts)
    chosen = replace(model, tasks={task: part})
    sections = {
        "## Use": [*_code(graphs, files, form), "", f"`{FACTS_FILE}` has the same steps and numbers for programs."],
        "## Inputs and outputs": [*_table(described)],
        "## Preprocessing": [f"{number}. {step}" for number, step in enumerate(steps, start=1)],
        "## Answer": [f"{number}. {step}" for number, step in enumerate(answer, start=1)],
        **(describe_origin(chosen) if "data" in model.facts else {}),
    }
    write_text(folder / CARD_FILE, join_sections(chosen, sections))


def _input_vocabularies(tokenizer: Tokenizer) -> dict[str, StoredFile]:
    """Return the vocabulary of a tokenizer, or of each member of a mixture, keyed by file name."""
    parts = {INPUT_VOCABULARY: tokenizer}
    if isinstance(tokenizer, Mixture):
        parts = {member_vocabulary(index): part for index, part in enumerate(tokenizer.members.values(), start=1)}
    found = {name: getattr(part, "vocabulary", None) for name, part in parts.items()}
    return {name: vocabulary for name, vocabulary in found.items() if vocabulary is not None}


def _describe_graph(graph: Graph) -> dict[str, Any]:
    return {
        kind: [
            {"name": name, "dtype": str(part.dtype).removeprefix("torch."), "shape": _shape(part, graph.axes[name])}
            for name, part in parts.items()
        ]
        for kind, parts in (("inputs", graph.inputs), ("outputs", graph.outputs))
    }


def _shape(part: Tensor, axes: Mapping[int, str]) -> list[int | str]:
    return [axes.get(axis, side) for axis, side in enumerate(part.shape)]


def _table(described: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    yield from ("| graph | | name | type | shape |", "|---|---|---|---|---|")
    for graph in described.values():
        for kind in ("inputs", "outputs"):
            for part in graph[kind]:
                shape = " x ".join(map(str, part["shape"]))
                yield f"| `{graph['file']}` | {kind[:-1]} | `{part['name']}` | {part['dtype']} | {shape} |"
    has_text = any("text_length" in part["shape"] for graph in described.values() for part in graph["inputs"])
    start = " `text_length` is 0 before the first step." if has_text else ""
    yield from ("", f"`batch` and `length` may be any number of at least 1.{start}")


def _code(graphs: Mapping[str, Graph], files: Mapping[str, str], form: GraphFormat) -> list[str]:
    lines: dict[str, None] = {}
    for name, graph in graphs.items():
        inputs = ", ".join(graph.inputs)
        feed = f"{{{', '.join(f'{chr(34)}{part}{chr(34)}: {part}' for part in graph.inputs)}}}"
        fields = {"name": name, "file": files[name], "inputs": inputs, "feed": feed}
        fields |= {"outputs": ", ".join(graph.outputs) + ("," if len(graph.outputs) == 1 else "")}
        fields |= {"torch": f"version {version('torch')}"}
        lines |= dict.fromkeys(line.format(**fields) for line in LOADING[form])
    return ["```python", *lines, "```"]


def _output_facts(head: Head) -> dict[str, Any]:
    if isinstance(head, TextGenerationHead):
        constant = max_target_length(0)
        return {
            "vocabulary": OUTPUT_VOCABULARY,
            "begin": BOS,
            "end": EOS,
            "max_length": {"per_input_token": max_target_length(1) - constant, "constant": constant},
            "beam_width": head.beam_width,
            "length_penalty": head.length_penalty,
        }
    labels = getattr(head, "labels", None)
    return {} if labels is None else {"labels": list(labels)}


def _answer(head: Head) -> Iterable[str]:
    """Yield the steps from the outputs of the graphs to the answer of `unifier predict`."""
    if isinstance(head, TextGenerationHead):
        yield from _decoding(head)
        return
    if hasattr(head, "labels"):
        yield f"The labels are in `{FACTS_FILE}`, in their order."
    yield from head.describe_graph()


def _decoding(head: TextGenerationHead) -> Iterable[str]:
    constant = max_target_length(0)
    yield "Run `encoder` once. Its outputs are the state of the decoder, one row per example."
    yield (
        f"Begin each text with the id {BOS}. Run `step` with the last id of each text (int64, batch) and the state. "
        "`log_probs` are the natural logarithms of the probabilities of the next id. For each output "
        "`next_state_k`, use this output as `state_k` of the next step. The other tensors of the state do not change."
    )
    yield (
        f"Greedy search takes the id with the largest value as the next id. A text ends with the id {EOS}, or after "
        f"{max_target_length(1) - constant} * N + {constant} ids, where N is the number of real input tokens."
    )
    yield (
        f"Remove the ids below {EOS + 1}. Decode the others with Hugging Face's `tokenizers.Tokenizer.from_file("
        f'"{OUTPUT_VOCABULARY}").decode(ids, skip_special_tokens=False)`, and remove one space at the start.'
    )
    if head.beam_width > 1:
        yield (
            f"`unifier predict` uses beam search of width {head.beam_width} in place of greedy search. The score of a "
            f"text is the sum of its log-probabilities, including the end id, divided by its number of ids to the "
            f"power of {head.length_penalty:g}. For beam search, repeat and reorder the rows of the state."
        )
