"""Compare recurrent, convolutional and transformer trunks over the length of a text: `python -m benchmarks.lengths`.

A trunk trains a language model for one step, and generates one text. All trunks have equal width and about equal
numbers of parameters, so the depths differ.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.runner.figure import STYLE
from benchmarks.runner.report import describe_machine
from benchmarks.runner.tables import publish_section, table_header, table_row
from benchmarks.runner.timing import round_seconds
from unifier.files import write_json
from unifier.heads.language_modeling import LanguageModelingHead
from unifier.nn.attention import KVCache
from unifier.training.memory import configure_allocator
from unifier.training.result import source_commit
from unifier.trunks.convolutional import ConvolutionalTrunk
from unifier.trunks.recurrent import RecurrentTrunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import Tokens

FOLDER = Path(__file__).parent
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
"""Numbers of tokens of a text."""
DIM, HEADS, NUM_IDS = 128, 4, 1000
"""D, the number of attention heads, and the number of entries of the vocabulary."""
TOKENS_PER_BATCH = 4096
"""Number of tokens in a training step. The number of texts in a batch is this number divided by their length."""
REFERENCE = "transformer"
"""The trunk by whose time the times of all trunks are divided."""

TRUNKS: dict[str, Callable[[int], Trunk]] = {
    REFERENCE: lambda dim: Transformer(dim, 4, HEADS),
    "convolutional": lambda dim: ConvolutionalTrunk(dim, 5),
    "lstm": lambda dim: RecurrentTrunk(dim, 6, bidirectional=False),
    "gru": lambda dim: RecurrentTrunk(dim, 8, bidirectional=False, cell="gru"),
}
"""A function for each trunk. With these depths, all trunks have 48 to 50 D^2 weights in matrices."""

COLORS = ("#c8553d", "#3f7cac", "#2f8f6b", "#8d6cab")
TASKS = {"training": "one training step, ms", "generating": "generating one text, ms"}
"""The title of each measurement."""

Step = Callable[[Tensor], Tensor]
"""A function that maps the next column (B, D, 1) of a text to the trunk's output (B, D, 1)."""


def training_step(trunk: Trunk, length: int) -> Callable[[], None]:
    """Return a function that trains a language model for one step, on random texts of a length."""
    torch.manual_seed(0)
    ids = torch.randint(NUM_IDS, (max(TOKENS_PER_BATCH // length, 1), length + 1))
    embedding, head = nn.Embedding(NUM_IDS, trunk.dim), LanguageModelingHead(NUM_IDS, trunk.dim)
    network = nn.ModuleList([embedding, trunk, head])
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    mask = torch.ones(len(ids), length, dtype=torch.bool)
    positions = torch.arange(length).expand(len(ids), 1, -1)

    def step() -> None:
        tokens = Tokens(embedding(ids[:, :-1]).mT, mask, positions)
        head.loss(trunk(tokens, "causal"), ids[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@torch.no_grad()
def generate_text(trunk: Trunk, length: int) -> Tensor:
    """Return the ids (1, `length`) of a text that greedy search generates token by token."""
    torch.manual_seed(0)
    embedding, output = nn.Embedding(NUM_IDS, trunk.dim), nn.Linear(trunk.dim, NUM_IDS)
    step, ids = create_step(trunk), [torch.zeros(1, 1, dtype=torch.long)]
    for _ in range(length):
        ids.append(output(step(embedding(ids[-1]).mT).mT).argmax(-1))
    return torch.cat(ids[1:], 1)


def create_step(trunk: Trunk) -> Step:
    """Return a function that reads one text token by token, and computes no earlier token again.

    A transformer keeps the keys and values of earlier tokens, a recurrent trunk its states, and a convolutional trunk
    the inputs of each layer that its kernels reach.
    """
    if isinstance(trunk, Transformer):
        return _transformer_step(trunk)
    if isinstance(trunk, RecurrentTrunk):
        return _recurrent_step(trunk)
    assert isinstance(trunk, ConvolutionalTrunk)
    return _convolutional_step(trunk)


def _transformer_step(trunk: Transformer) -> Step:
    caches, seen = [KVCache(grows=True) for _ in trunk.blocks], 0

    def step(column: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        mask = torch.ones(len(column), seen, dtype=torch.bool)
        positions = torch.full((len(column), 1, 1), seen - 1)
        return trunk.forward_cached(Tokens(column, mask[:, -1:], positions), mask, caches, causal=True).matrix

    return step


def _recurrent_step(trunk: RecurrentTrunk) -> Step:
    states: list[Any] = [None] * len(trunk.layers)
    layers = cast("list[nn.LSTM | nn.GRU]", trunk.layers)

    def step(column: Tensor) -> Tensor:
        x = column.mT
        for k, (layer, norm) in enumerate(zip(layers, trunk.norms, strict=True)):
            y, states[k] = layer(norm(x), states[k])
            x = x + y
        return trunk.norm(x).mT

    return step


def _convolutional_step(trunk: ConvolutionalTrunk) -> Step:
    inputs: list[Tensor | None] = [None] * len(trunk.layers)

    def step(column: Tensor) -> Tensor:
        x = column.mT
        for k, (layer, norm) in enumerate(zip(trunk.layers, trunk.norms, strict=True)):
            earlier = inputs[k]
            if earlier is None:
                earlier = x.new_zeros(len(x), trunk.dim, trunk.reaches[k])
            reached = torch.cat([earlier, norm(x).mT], 2)
            inputs[k] = reached[:, :, 1:]
            x = x + functional.glu(layer(reached), dim=1).mT
        return trunk.norm(x).mT

    return step


def measure(lengths: Sequence[int], rounds: int) -> dict[str, Any]:
    """Measure all trunks in turn, for each length.

    Args:
        lengths: The numbers N of tokens of a text.
        rounds: The number of timed rounds of each trunk.

    Returns:
        The number of parameters of each trunk, and the seconds of each round by measurement, length and trunk.
    """
    parameters = {name: sum(map(Tensor.numel, build(DIM).parameters())) for name, build in TRUNKS.items()}
    seconds: dict[str, dict[str, dict[str, list[float]]]] = {task: {} for task in TASKS}
    for length in lengths:
        trunks = {name: build(DIM) for name, build in TRUNKS.items()}
        work: dict[str, list[Callable[[], object]]] = {
            "training": [training_step(trunk, length) for trunk in trunks.values()],
            "generating": [partial(generate_text, trunk.eval(), length) for trunk in trunks.values()],
        }
        for task, functions in work.items():
            times = round_seconds(functions, rounds)
            seconds[task][str(length)] = dict(zip(trunks, times, strict=True))
    return {"dim": DIM, "tokens_per_batch": TOKENS_PER_BATCH, "parameters": parameters, "seconds": seconds}


def length_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield one table per measurement: the median milliseconds, and the median of the ratios to the transformer."""
    for task, title in TASKS.items():
        yield table_header([f"N, {title}", *(f"{name} ({count:,})" for name, count in results["parameters"].items())])
        for length, times in results["seconds"][task].items():
            yield table_row([f"{int(length):,}", *(_cell(name, times) for name in times)])
        yield ""


def _cell(name: str, times: Mapping[str, Sequence[float]]) -> str:
    milliseconds = f"{1000 * median(times[name]):,.1f}"
    if name == REFERENCE:
        return milliseconds
    ratio = median(own / other for own, other in zip(times[name], times[REFERENCE], strict=True))
    return f"{milliseconds} ({ratio:.2f} x)"


def draw_lengths(results: Mapping[str, Any], path: Path) -> None:
    """Write an SVG file with one panel per measurement. Both axes are logarithmic."""
    with mpl.rc_context({**STYLE, "axes.spines.bottom": True}):
        figure = Figure(figsize=(9.2, 3.4), layout="constrained", facecolor="white")
        for axes, (task, title) in zip(figure.subplots(1, len(TASKS)), TASKS.items(), strict=True):
            lengths = [*map(int, results["seconds"][task])]
            for color, name in zip(COLORS, results["parameters"], strict=True):
                times = [times[name] for times in results["seconds"][task].values()]
                axes.plot(lengths, [1000 * median(rounds) for rounds in times], "o-", color=color, ms=3, label=name)
                low, high = ([1000 * end(rounds) for rounds in times] for end in (min, max))
                axes.fill_between(lengths, low, high, color=color, alpha=0.15, linewidth=0)
            axes.set(xscale="log", yscale="log", xlabel="tokens of a text", title=title)
            axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
            axes.minorticks_off()
            axes.grid(axis="y", alpha=0.3)
        figure.axes[0].legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure all lengths, and write lengths.json, lengths.svg and the tables of README.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lengths", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="N", help="numbers of tokens")
    parser.add_argument("--rounds", type=int, default=7, help="number of timed rounds (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="number of threads (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="print the tables, and write no files")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    configure_allocator()
    results = {
        "machine": describe_machine("cpu"),
        "commit": source_commit(),
        **measure(options.lengths, options.rounds),
    }
    text = "\n".join(length_lines(results)).rstrip()
    if options.quick:
        print(text)
        return
    write_json(FOLDER / "lengths.json", results)
    draw_lengths(results, FOLDER / "lengths.svg")
    publish_section("lengths", f"{text}\n\n![Time over the length of a text](lengths.svg)")


if __name__ == "__main__":
    main()
