"""Results for a stream of inputs, in the order of the inputs. Inputs of similar length share a batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from unifier.data.dataloader import Batch, batch_by_tokens, sort_by_length
from unifier.data.encoding import encode_units
from unifier.data.source import Example
from unifier.models.folder import ModelTask
from unifier_tokenizers import InputError, Units, pad_columns
from unifier_tokenizers.errors import one_line

WINDOW_BATCHES = 32
"""Maximum number of batches that are sorted by length together. The first window is one batch, and each window has
twice as many batches as the previous window, so the first results arrive early."""

MAX_WINDOW_BYTES = 1 << 26
"""Number of bytes of encoded inputs at which a window ends."""

MAX_WINDOW_INPUTS = 1 << 13
"""Maximum number of inputs in a window."""

MAX_LENGTH_RATIO = 8
"""An input may have at most this multiple of the tokens of the longest training example. Attention to more tokens would
fill the memory."""

SIGNIFICANT_DIGITS = 4
"""Number of digits of a probability. The last digits of float32 depend on the number of inputs in a batch."""

ComputeFn = Callable[[Batch], Mapping[int, Any]]
"""Function that returns the result of each example of a batch, keyed by example index."""


@final
class Pause:
    """Mark in a stream of inputs: the next input is not ready, so the previous inputs should not wait for it."""


def stream_results(inputs: Iterable[Any], task: ModelTask, compute: ComputeFn, *, max_tokens: int) -> Iterator[Any]:
    """Yield one result per input, in the order of the inputs. Only a window of inputs is in memory.

    Args:
        inputs: Inputs for the task's `reader`, or encoded inputs. An `InputError` among them is yielded unchanged. A
            `Pause` has no result.
        task: The task that reads and encodes the inputs.
        compute: The function that computes the results of a batch.
        max_tokens: Maximum number of tokens in a batch, including padding.

    Yields:
        The result of each input, or an `InputError` for an input that cannot be read.
    """
    window: list[Units | InputError] = []
    num_batches, num_tokens, num_bytes = 1, 0, 0
    for value in inputs:
        if not isinstance(value, Pause):
            window.append(encoded := encode_input(task, value))
            if isinstance(encoded, Units):
                num_tokens += encoded.values.shape[-1]
                num_bytes += encoded.values.nbytes + encoded.positions.nbytes
        is_full = num_tokens >= num_batches * max_tokens or num_bytes >= MAX_WINDOW_BYTES
        if is_full or len(window) >= MAX_WINDOW_INPUTS or isinstance(value, Pause):
            yield from _compute_window(window, compute, max_tokens)
            window, num_tokens, num_bytes = [], 0, 0
            num_batches = min(2 * num_batches, WINDOW_BATCHES)
    yield from _compute_window(window, compute, max_tokens)


def round_probability(probability: float) -> float:
    """Return a probability with `SIGNIFICANT_DIGITS` digits."""
    return float(f"{probability:.{SIGNIFICANT_DIGITS}g}")


def encode_input(task: ModelTask, value: Any) -> Units | InputError:
    """Prepare and encode an input as in training, or return the reason why the input cannot be encoded."""
    if isinstance(value, InputError | Units):
        return value
    try:
        units = encode_units(task.tokenizer, Example(task.reader.prepare(value), None))
    except (ValueError, OSError) as error:
        return error if isinstance(error, InputError) else InputError(one_line(error))
    if (length := units.values.shape[-1]) > (most := MAX_LENGTH_RATIO * task.longest):
        return InputError(
            f"{length:,} tokens, but at most {most:,} are possible, which is {MAX_LENGTH_RATIO} times the longest "
            "training example: divide the input"
        )
    return units


def _compute_window(window: Sequence[Units | InputError], compute: ComputeFn, max_tokens: int) -> list[Any]:
    """Return the result of each input of a window."""
    results: dict[int, Any] = dict(enumerate(window))
    indices = [index for index, item in enumerate(window) if isinstance(item, Units)]
    if not indices:
        return list(window)
    lengths = np.array([(results[index].values.shape[-1], 1) for index in indices], np.int32)
    for rows in batch_by_tokens(sort_by_length(lengths), lengths, max_tokens):
        batch = {indices[row]: results[indices[row]] for row in rows.tolist()}
        results |= _compute_batch(batch, compute)
    return [results[index] for index in range(len(window))]


def _compute_batch(units: Mapping[int, Units], compute: ComputeFn) -> Mapping[int, Any]:
    """Return the result of each example. If the batch fails, each example is computed alone, and may fail alone."""
    try:
        indices = torch.tensor(list(units))
        return compute(Batch(*pad_columns(list(units.values())), target=indices, example_indices=indices))
    except InputError as error:
        if len(units) == 1:
            return dict.fromkeys(units, error)
        return {index: result for index in units for result in _compute_batch({index: units[index]}, compute).values()}
