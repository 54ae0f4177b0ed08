"""Predictions for the inputs of requests: preparation in any thread, computation in one thread."""

import base64
import binascii
import threading
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from unifier.data.inputs import AudioReader, ImageReader, InputReader, MixtureReader, TextReader
from unifier.figures.mask_figures import class_colors, overlay_of
from unifier.figures.speech_figures import speech_figure
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.detection import MIN_SCORE, DetectionHead
from unifier.heads.segmentation import SegmentationHead
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead
from unifier.heads.text_generation import TextGenerationHead
from unifier.heads.token_classification import describe_labels
from unifier.inference.explain import explain_attention, explain_heads, explain_texts
from unifier.inference.model import Model
from unifier.inference.predict import answers_of
from unifier.inference.sound_folder import wav_bytes
from unifier.inference.stream import encode_input, round_probability
from unifier.serving.batching import Batcher
from unifier.serving.schema import (
    ClassArea,
    FoundObject,
    LabelAnswer,
    MaskAnswer,
    PredictAnswer,
    Prediction,
    PredictRequest,
)
from unifier_tokenizers import InputError, PretrainedTextTokenizer, SubwordTokenizer, Units, WordTokenizer

MAX_INPUTS = 256
"""Maximum number of inputs in a request."""

NUM_TEXTS = 5
"""Number of texts that a request with `explain` returns."""

KINDS: Mapping[type[InputReader], str] = {TextReader: "text", ImageReader: "picture", AudioReader: "sound"}
"""Mapping from a reader to the kind of its inputs."""

Kind = str | dict[str, str]
"""The kind of a task's inputs: "text", "picture" or "sound", or a mapping with the kind of each member of a mixture."""


@final
class PredictionJob(NamedTuple):
    """The prepared inputs of a request."""

    task: str
    inputs: list[Units]
    top_k: int | None
    explain: bool
    sizes: Sequence[tuple[int, int]]
    """The width and height of each input in pixels, if the inputs are pictures."""
    texts: Sequence[str | Mapping[str, Any]] = ()
    """The inputs, if the inputs are texts or mappings."""


@final
class PredictionService:
    """A model whose network is used by one thread only."""

    def __init__(self, model: Model, task: str | None = None) -> None:
        """Start the thread.

        Args:
            model: The model.
            task: The only task that is served. None serves all tasks whose inputs can be sent in a request.

        Raises:
            InputError: The task is unknown, or none of the tasks reads texts, pictures or sounds and has predictions.
        """
        names = model.tasks if task is None else [model.choose_task(task)]
        if all(model.tasks[name].head.missing_prediction for name in names):
            reason = model.tasks[next(iter(names))].head.missing_prediction
            raise InputError(f"the task {', '.join(names)} has no predictions: {reason}")
        names = [name for name in names if not model.tasks[name].head.missing_prediction]
        kinds = {name: _kind(model.tasks[name].reader) for name in names}
        self.model, self.kinds = model, {name: kind for name, kind in kinds.items() if kind is not None}
        if not self.kinds:
            raise InputError(
                f"{model.name}: no task reads texts, pictures or sounds (tasks: {', '.join(names)}); use `unifier "
                "predict`, or `unifier generate` for a language model"
            )
        # A tokenizer need not be safe for threads. Two threads that first import torchaudio can both fail.
        self._encoding = threading.Lock()
        self._batcher = Batcher[PredictionJob, PredictAnswer](self._compute)
        self.submit, self.close = self._batcher.submit, self._batcher.close

    def prepare(self, request: PredictRequest, upload: tuple[str, bytes] | None = None) -> PredictionJob:
        """Read and encode the inputs of a request.

        Args:
            request: The request.
            upload: The name and the content of a file, for a request without inputs in JSON.

        Raises:
            InputError: The task is unknown, or an input cannot be read.
        """
        name = self._choose_task(request.task)
        task, contents = self.model.tasks[name], self._contents(name, request, upload)
        if request.top_k is not None and not isinstance(task.head, ClassificationHead | TaggingHead):
            raise InputError(f"top_k={request.top_k}: the task {name} has no labels; leave out top_k")
        if len(contents) > (most := 1 if request.explain else MAX_INPUTS):
            raise InputError(f"{len(contents)} inputs, but at most {most} are possible: send several requests")
        units, texts, sizes = list[Units](), list[str | Mapping[str, Any]](), list[tuple[int, int]]()
        for number, content in enumerate(contents):
            place = f"input {number}: " if len(contents) > 1 else ""
            try:
                value = _read(task.reader, content, upload[0] if upload else KINDS.get(type(task.reader), "input"))
            except InputError as error:
                raise InputError(f"{place}{error}") from error
            with self._encoding:
                encoded = encode_input(task, value)
            if isinstance(encoded, InputError):
                raise InputError(f"{place}{encoded}") from encoded
            units.append(encoded)
            texts += [value] if isinstance(value, str | Mapping) else []
            sizes += [(value.shape[1], value.shape[0])] if isinstance(value, np.ndarray) else []
        return PredictionJob(name, units, request.top_k, request.explain, sizes, texts)

    def _choose_task(self, task: str | None) -> str:
        if task is None and len(self.kinds) > 1:
            raise InputError(f"the model has several tasks: set `task` to one of {', '.join(self.kinds)}")
        if task is not None and task not in self.kinds:
            raise InputError(f"there is no task {task!r}: choose one of {', '.join(self.kinds)}")
        return task or next(iter(self.kinds))

    def _contents(self, task: str, request: PredictRequest, upload: tuple[str, bytes] | None) -> Sequence[Any]:
        """Return the inputs of a request as texts, bytes, or mappings with a text or bytes per member."""
        kind = self.kinds[task]
        given = [name for name in ("text", "file", "inputs") if getattr(request, name) is not None]
        given += ["file"] if upload else []
        if len(given) != 1:
            raise InputError(f"{' and '.join(given) or 'no input'}: give exactly one of text, file and inputs")
        if given == ["inputs"]:
            return [_decode(kind, content) for content in request.inputs or ()]
        if not isinstance(kind, str):
            raise InputError(f"the task {task} reads objects with {_describe(kind)}: send them as inputs in JSON")
        if given == ["text"] and kind != "text":
            raise InputError(f"the task {task} reads a {kind}, not a text: send a file, or file in base64")
        if given == ["text"]:
            return [request.text]
        if kind != "text":
            return [upload[1] if upload else _decode(kind, request.file)]
        if not upload:
            raise InputError(f"the task {task} reads a text, not a file: send text")
        try:
            lines = upload[1].decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{upload[0]}: the task {task} reads texts, but the file is not UTF-8 text") from error
        if not lines:
            raise InputError(f"{upload[0]} has no lines: send a file with one text per line")
        return lines

    def _compute(self, jobs: Sequence[PredictionJob]) -> list[PredictAnswer | InputError]:
        """Return the answers to jobs. The inputs of all jobs of a task are computed together."""
        answers: dict[int, PredictAnswer | InputError] = {}
        numbered = sorted(enumerate(jobs), key=lambda entry: entry[1].task)
        for name, entries in groupby(numbered, key=lambda entry: entry[1].task):
            group = list(entries)
            inputs = (units for _, job in group for units in job.inputs)
            results = self.model.predictions(inputs, name, bad_inputs="yield")
            for index, job in group:
                answers[index] = self._answer(job, [next(results) for _ in job.inputs])
        return [answers[index] for index in range(len(jobs))]

    def _answer(self, job: PredictionJob, results: Sequence[Any]) -> PredictAnswer | InputError:
        if error := next((result for result in results if isinstance(result, InputError)), None):
            return error
        return PredictAnswer(task=job.task, predictions=[self._format(job, *each) for each in enumerate(results)])

    def _format(self, job: PredictionJob, number: int, result: Any) -> Prediction:
        task = self.model.tasks[job.task]
        head = task.head
        if isinstance(head, ClassificationHead | TaggingHead):
            answers = answers_of(head, result, job.top_k or len(head.labels))
            labels = [LabelAnswer(label=label, probability=value or 0.0) for label, value in answers]
            prediction = Prediction(labels=labels)
        else:
            text = describe_labels(head, task.tokenizer, job.texts[number], result) if job.texts else None
            prediction = Prediction(text=text or head.describe(result))
            if isinstance(head, SegmentationHead):
                width, height = job.sizes[number]
                prediction.mask = _mask_answer(result.numpy()[:height, :width], head.labels)
                prediction.text = head.describe(result[:height, :width])
            if isinstance(head, DetectionHead):
                prediction.objects = [
                    FoundObject(label=head.labels[label], score=round_probability(score), box=box)
                    for box, label, score in zip(*(part.tolist() for part in result), strict=True)
                    if score >= MIN_SCORE
                ]
            if isinstance(head, SpectrogramDecoderHead):
                prediction.sound = base64.b64encode(wav_bytes(head.to_sound(result))).decode()
        if job.explain:
            (units,) = job.inputs
            if isinstance(head, SpectrogramDecoderHead):
                figure = speech_figure(head, task.tokenizer, units, result)
                prediction.alignment = base64.b64encode(figure).decode()
            text = task.reader.prepare(job.texts[number]) if job.texts and isinstance(job.texts[number], str) else ""
            prediction.attention = explain_attention(self.model, job.task, units, text)
            prediction.size = job.sizes[0] if job.sizes else None
            if isinstance(task.tokenizer, SubwordTokenizer | PretrainedTextTokenizer):
                prediction.tokens = task.tokenizer.vocabulary.tokens(units.values.tolist())
            if isinstance(task.tokenizer, WordTokenizer):
                prediction.tokens = task.tokenizer.words(text)
            if isinstance(head, TextGenerationHead):
                prediction.texts = explain_texts(self.model, job.task, units, NUM_TEXTS)
            if prediction.tokens:
                best = prediction.texts[0].text if prediction.texts else ""
                prediction.heads = explain_heads(self.model, job.task, units, best)
        return prediction


def _mask_answer(mask: NDArray[np.uint8], labels: Sequence[str]) -> MaskAnswer:
    """Return the answer with a mask (H, W) of class indices."""
    colors = class_colors(len(labels)).tolist()
    shares = (np.bincount(mask.ravel(), minlength=len(labels)) / mask.size).tolist()
    areas = [
        ClassArea(label=label, color=color, share=share)
        for label, color, share in zip(labels, colors, shares, strict=True)
    ]
    return MaskAnswer(png=base64.b64encode(overlay_of(mask, len(labels))).decode(), classes=areas)


def _kind(reader: InputReader) -> Kind | None:
    """Return the kind of a reader's inputs, or None if the inputs cannot be sent in a request."""
    if not isinstance(reader, MixtureReader):
        return KINDS.get(type(reader))
    members = {name: KINDS.get(type(member)) for name, member in reader.members.items()}
    known = {name: kind for name, kind in members.items() if kind is not None}
    return known if len(known) == len(members) else None


def _describe(kind: Mapping[str, str]) -> str:
    return ", ".join(f"{name} (a {part})" for name, part in kind.items())


def _decode(kind: Kind, content: Any) -> Any:
    """Return an input from JSON with bytes in place of base64."""
    if isinstance(kind, str):
        if not isinstance(content, str):
            raise InputError(f"an input of this task is a {kind}, not an object")
        try:
            return content if kind == "text" else base64.b64decode(content.encode(), validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise InputError(f"a {kind} must be sent as the bytes of its file in base64") from error
    if not isinstance(content, dict) or content.keys() != kind.keys():
        raise InputError(f"an input of this task is an object with {_describe(kind)}")
    return {name: _decode(part, content[name]) for name, part in kind.items()}


def _read(reader: InputReader, content: Any, name: str) -> Any:
    """Read a text, the bytes of a file, or a mapping with a text or bytes per member."""
    if isinstance(reader, MixtureReader):
        return {member: _read(part, content[member], member) for member, part in reader.members.items()}
    if isinstance(reader, ImageReader | AudioReader):
        return reader(Path(name), {Path(name): content})
    return content
