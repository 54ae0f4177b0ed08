"""Graphs of one task of a model, which run without unifier: programs of `torch.export`, and ONNX."""

import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from unifier.data.dataloader import Batch, TestTimeAugmentation
from unifier.data.encoding import encode_units
from unifier.data.inputs import (
    AudioReader,
    ImageReader,
    InputReader,
    MixtureReader,
    SeriesReader,
    TextReader,
    VideoReader,
)
from unifier.data.source import Example
from unifier.heads.head import Head
from unifier.heads.text_generation import State, TextGenerationHead
from unifier.models.folder import ModelTask
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import (
    Audio,
    InputError,
    ItemTokenizer,
    Mixture,
    PianoRollTokenizer,
    PixelTokenizer,
    Tokenizer,
    Tokens,
    Units,
    VideoTokenizer,
    pad_columns,
)
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.piano_roll import LOWEST_NOTE, NUM_NOTES
from unifier_tokenizers.subwords import BOS, PAD

UNIT_NAMES = ("values", "positions", "mask")
"""The inputs of the first graph: encoded units, as in `Batch`."""

NUM_EXAMPLES, MAX_ATTEMPTS = 4, 48
"""Number of example inputs of different lengths, and the largest number of inputs that are encoded to find them."""

TRACED_STEPS = 3
"""Number of decoding steps before the traced step, because a traced length must be at least 2."""

MAX_RELATIVE_ERROR, MAX_ERROR = 1e-3, 1e-4
"""Largest difference between a graph and the network, which only rounding may cause."""

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")

_PARTS = (Trunk, Head, Tokenizer, TestTimeAugmentation)
"""The parts of a model that can be the cause of a failed trace."""


@final
@dataclass(frozen=True)
class Graph:
    """A traced part of a model, with the names and example values of its inputs and outputs."""

    program: ExportedProgram
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    axes: Mapping[str, dict[int, str]]
    """The names of the variable axes of each input and output, such as {0: "batch"}."""

    def save_torch(self, path: Path) -> None:
        """Write the graph as a file for `torch.export.load`."""
        with _quiet():
            torch.export.save(self.program, path)

    def save_onnx(self, path: Path) -> None:
        """Write the graph as an ONNX file, and compare the file's results with the example outputs.

        Raises:
            InputError: ONNX has no operator for a part of the graph, or onnxruntime gives other results.
        """
        from onnxruntime import InferenceSession

        with _quiet():
            try:
                onnx = torch.onnx.export(
                    self.program, input_names=[*self.inputs], output_names=[*self.outputs], dynamo=True, verbose=False
                )
            except torch.onnx.errors.OnnxExporterError as error:
                reason = one_line(Exception(error.__cause__ or error))[:160]
                raise InputError(f"the graph cannot be written as ONNX ({reason}): use --format torch") from error
            assert onnx is not None
            for value in (*onnx.model.graph.inputs, *onnx.model.graph.outputs):
                assert value.name is not None
                assert value.shape is not None
                for axis, name in self.axes[value.name].items():
                    value.shape[axis] = name
            onnx.save(path)
            session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
            found = session.run([*self.outputs], {name: part.numpy() for name, part in self.inputs.items()})
        _compare(path.name, [torch.from_numpy(part) for part in found], [*self.outputs.values()])


@final
class _AnswerGraph(nn.Module):
    """The network of a task. The output is one tensor, averaged over the views of test-time augmentation."""

    def __init__(self, trunk: Trunk, task: ModelTask) -> None:
        super().__init__()
        self.trunk, self.tokenizer, self.head, self.tta = trunk, task.tokenizer, task.head, task.tta

    def forward(self, values: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor]:
        index = torch.arange(mask.shape[0], device=mask.device)
        batch = Batch(values, positions, mask, index, index)
        views = [batch] if self.tta is None else [*self.tta(batch)]
        # One pass over all views gives a graph that is smaller than a graph with a copy of the network for each view.
        joined = views[0] if len(views) == 1 else Batch(*(torch.cat(parts) for parts in zip(*views, strict=True)))
        output = self.head.graph_output(self.head.run_trunk(self.trunk, joined.embed(self.tokenizer)))
        return (output if len(views) == 1 else output.unflatten(0, (len(views), -1)).mean(0),)


@final
class _EncoderGraph(nn.Module):
    """The network of a task that generates texts, up to the decoder's state before the first token."""

    def __init__(self, trunk: Trunk, task: ModelTask) -> None:
        super().__init__()
        assert isinstance(task.head, TextGenerationHead)
        self.trunk, self.tokenizer, self.head = trunk, task.tokenizer, task.head

    def forward(self, values: Tensor, positions: Tensor, mask: Tensor) -> State:
        tokens = Tokens(self.tokenizer.embed(values, positions), mask, positions)
        state = self.head.start_decoding(self.head.run_trunk(self.trunk, tokens))
        return tuple(part.contiguous() for part in state)  # The step is traced for contiguous tensors.


@final
class _StepGraph(nn.Module):
    """One decoding step: the log-probabilities (R, V) of the next token, and the tensors of the state that change."""

    def __init__(self, trunk: Trunk, head: TextGenerationHead) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head

    def forward(self, ids: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        hidden, new = self.head.step(ids[:, None], state)
        logs = self.head.project(hidden[:, 0]).float().log_softmax(-1)
        index = torch.arange(logs.shape[1], device=logs.device)
        logs = logs.masked_fill((index == PAD) | (index == BOS), -torch.inf)
        return logs, *(after.contiguous() for before, after in zip(state, new, strict=True) if after is not before)


def check_onnx_packages() -> None:
    """Raise InputError if a package is missing that writes or checks ONNX files."""
    for package in ONNX_PACKAGES:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            raise InputError(f'{error.name} is not installed: pip install "unifier-torch[onnx]"') from error


def trace_graphs(trunk: Trunk, task: ModelTask) -> dict[str, Graph]:
    """Trace the network of a task in float32 on the CPU.

    Args:
        trunk: The trunk, in evaluation mode.
        task: The task, whose modules are in evaluation mode.

    Returns:
        The graph "model", or the graphs "encoder" and "step" of a task that generates texts.

    Raises:
        InputError: A part of the model cannot be traced, or gives other results in a graph. The message names the part.
    """
    with torch.inference_mode(False), torch.no_grad():
        if isinstance(task.head, TextGenerationHead):
            return _trace_decoder(trunk, task, task.head)
        batches = _example_batches(task)
        return {"model": _trace("model", _AnswerGraph(trunk, task), UNIT_NAMES, batches, ["output"])}


def _trace_decoder(trunk: Trunk, task: ModelTask, head: TextGenerationHead) -> dict[str, Graph]:
    batches, encoder = _example_batches(task), _EncoderGraph(trunk, task)
    with _naming(encoder):
        states = [encoder(*batch) for batch in batches]
    names = [f"state_{k}" for k in range(len(states[0]))]
    graphs = {"encoder": _trace("encoder", encoder, UNIT_NAMES, batches, names)}
    step = _StepGraph(trunk, head)
    inputs: list[tuple[Tensor, ...]] = []
    changed = [
        name
        for name, before, after in zip(names, states[0], head.step(_ids(states[0])[:, None], states[0])[1], strict=True)
        if after is not before
    ]
    for number, state in enumerate(states):
        for _ in range(TRACED_STEPS if number == 0 else number - 1):
            new = dict(zip(changed, step(_ids(state), *state)[1:], strict=True))
            state = tuple(new.get(name, part) for name, part in zip(names, state, strict=True))
        inputs.append((_ids(state), *state))
    outputs = ["log_probs", *(f"next_{name}" for name in changed)]
    graph = _trace("step", step, ("ids", *names), inputs, outputs)
    for name in changed:  # These axes grow with the text.
        shapes = zip(graph.inputs[name].shape, graph.outputs[f"next_{name}"].shape, strict=True)
        grown = {axis: "text_length" for axis, (before, after) in enumerate(shapes) if before != after}
        graph.axes[name].update(grown)
        graph.axes[f"next_{name}"].update(grown)
    return {**graphs, "step": graph}


def _ids(state: State) -> Tensor:
    return torch.full((state[0].shape[0],), BOS)


def _example_batches(task: ModelTask) -> list[tuple[Tensor, ...]]:
    """Return batches of values, positions and mask. The first batch is traced, and the other batches check the graph.

    Raises:
        InputError: The input of the task is an object of Python, or cannot be encoded.
    """
    by_length: dict[int, Units] = {}
    refusal = ""
    for size in range(1, MAX_ATTEMPTS + 1):
        try:
            units = encode_units(task.tokenizer, Example(_example_input(task.reader, task.tokenizer, size), None))
        except InputError as error:
            refusal = str(error)
            continue
        by_length.setdefault(units.values.shape[-1], units)
        if len(by_length) == NUM_EXAMPLES + 2:
            break
    if not by_length:
        raise InputError(f"{type(task.tokenizer).__name__} cannot be exported as a graph: {refusal}")
    # torch.export treats lengths of 0 and 1 as constants, so the graph is traced with the longest examples.
    *short, longest = [by_length[length] for length in sorted(by_length)]
    if isinstance(task.tokenizer, Mixture):
        task.tokenizer.fix_layout(longest.values[None])
    others = [*short, longest]
    traced = [longest, *others[-3:-1], longest]
    return [pad_columns(part) for part in (traced, others[:1], others[-2:], [*others, longest])]


def _example_input(reader: InputReader, tokenizer: Tokenizer, size: int) -> Any:
    """Return a random input, which grows with `size`."""
    random = np.random.default_rng(size)
    if isinstance(tokenizer, PixelTokenizer):
        return random.integers(0, 256, (tokenizer.side, tokenizer.side)).astype(np.uint8)
    if isinstance(reader, ImageReader):
        shape = (8 * size, 12 * size) if reader.channels == 1 else (8 * size, 12 * size, reader.channels)
        return random.integers(0, 256, shape).astype(np.uint8)
    if isinstance(reader, VideoReader) and isinstance(tokenizer, VideoTokenizer):
        return random.integers(0, 256, (2 * size, 4 * size, 6 * size, tokenizer.channels)).astype(np.uint8)
    if isinstance(reader, AudioReader):
        rate = int(getattr(tokenizer, "sample_rate", 16_000))
        return Audio(torch.from_numpy(random.normal(scale=0.1, size=rate * size // 25)).float(), rate)
    if isinstance(reader, TextReader):
        words = ["abcdefgh"[k % 8] for k in range(size)]
        return words if reader.sentences else " ".join(words)
    if isinstance(tokenizer, ItemTokenizer):
        return random.integers(1, tokenizer.num_items + 1, size).tolist()
    if isinstance(tokenizer, PianoRollTokenizer):
        return [[LOWEST_NOTE + k % NUM_NOTES, LOWEST_NOTE + 2 * k % NUM_NOTES] for k in range(size)]
    if isinstance(reader, MixtureReader) and isinstance(tokenizer, Mixture):
        return {name: _example_input(part, tokenizer.members[name], size) for name, part in reader.members.items()}
    if isinstance(reader, SeriesReader):
        return random.normal(size=(len(reader.channels) if reader.joint else 1, reader.context))
    raise InputError("its inputs are objects of Python, so use --format folder")


def _trace(
    title: str, module: nn.Module, names: Sequence[str], inputs: Sequence[tuple[Tensor, ...]], outputs: Sequence[str]
) -> Graph:
    """Trace a module with the first inputs, and compare the graph with the module for all inputs.

    Args:
        title: The name of the graph.
        module: The module, whose results are one tensor or several tensors.
        names: The names of the inputs.
        inputs: Inputs of different sizes.
        outputs: The names of the outputs.
    """
    module.eval()
    with _naming(module), _quiet():
        expected = [module(*part) for part in inputs]
        axes = {name: _variable_axes(k, inputs) for k, name in enumerate(names)}
        dims = [dict.fromkeys(axes[name], Dim.AUTO) for name in names]
        program = torch.export.export(
            module,
            inputs[0],
            dynamic_shapes=(*dims[:1], tuple(dims[1:])) if isinstance(module, _StepGraph) else tuple(dims),
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )
        for part, wanted in zip(inputs, expected, strict=True):
            _compare(title, program.module()(*part), wanted)
    axes |= {name: _variable_axes(k, expected) for k, name in enumerate(outputs)}
    return Graph(program, dict(zip(names, inputs[0], strict=True)), dict(zip(outputs, expected[0], strict=True)), axes)


def _variable_axes(part: int, batches: Sequence[Sequence[Tensor]]) -> dict[int, str]:
    """Return the names of the axes along which a tensor of the batches varies. Axis 0 is the batch."""
    shapes = [batch[part].shape for batch in batches]
    varied = [axis for axis in range(1, len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]
    names = {2: "height", 3: "width"} if len(varied) > 1 else {}
    return {0: "batch"} | {axis: names.get(axis, "length") for axis in varied}


def _compare(title: str, found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Raise InputError if results differ by more than `MAX_RELATIVE_ERROR` and `MAX_ERROR`."""
    for result, wanted in zip(found, expected, strict=True):
        if result.shape != wanted.shape or not torch.allclose(result, wanted, MAX_RELATIVE_ERROR, MAX_ERROR):
            raise InputError(f"the graph {title} gives other results than the model: use --format folder")


@contextmanager
def _naming(module: nn.Module) -> Generator[None]:
    """Convert an error in the context to an InputError that names the part of the model in which the error occurred."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # torch.export raises errors of many classes.
        culprit = type(module).__name__.lstrip("_")
        trace = error.__traceback__
        while trace is not None:
            owner = trace.tb_frame.f_locals.get("self")
            culprit = type(owner).__name__ if isinstance(owner, _PARTS) else culprit
            trace = trace.tb_next
        reason = one_line(error)[:160]
        raise InputError(f"{culprit} cannot be exported as a graph ({reason}): use --format folder") from error


@contextmanager
def _quiet() -> Generator[None]:
    """Silence the warnings of torch's exporters, which print whole graphs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # torch prints the graph of a failed trace.
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
