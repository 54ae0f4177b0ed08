"""The preparation of a model's inputs in words and numbers, precise enough to repeat it without unifier."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from unifier.data.inputs import ImageReader, InputReader, MidiReader, MixtureReader, SeriesReader
from unifier_tokenizers import (
    NO_POSITION,
    FrameTokenizer,
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
    WaveformTokenizer,
    WordTokenizer,
)
from unifier_tokenizers.audio import MAX_RATIO_TERM, MIN_MIX_POWER, POWER_FLOOR
from unifier_tokenizers.items import BEGIN_ITEM
from unifier_tokenizers.mixture import HEADER, MIXED_DTYPES
from unifier_tokenizers.normalization import SpectrogramNorm
from unifier_tokenizers.piano_roll import LOWEST_NOTE, NUM_NOTES
from unifier_tokenizers.positions import PositionalEncoding
from unifier_tokenizers.samples import NUM_CODES
from unifier_tokenizers.subwords import BOS, EOS, PAD, UNK
from unifier_tokenizers.voices import BEGIN_PIECE, REST
from unifier_tokenizers.words import MAX_PIECES, UNITS

FACTS_FILE = "preprocessing.json"
"""The file with the same steps and numbers for programs, beside an exported graph."""

INPUT_VOCABULARY = "input_vocabulary.json"
"""The file with the vocabulary of the inputs, beside an exported graph."""

MAX_LISTED = 8
"""Largest number of statistics that a step lists. More numbers are only in model.safetensors."""


class Names(NamedTuple):
    """The places that the steps of a card name."""

    weights: str = ""
    """The name of the tokenizer's weights in model.safetensors. The card of an exported graph has no such file."""
    member: str = ""
    """The name of the tokenizer in a mixture."""
    file: str = INPUT_VOCABULARY
    """The file with the vocabulary in the folder of an exported graph."""

    @property
    def vocabulary(self) -> str:
        """The place of the vocabulary."""
        if self.weights:
            return 'the entry "vocabulary" of the tokenizer in config.json, a file of this folder'
        return f"`{self.file}` of this folder"

    def statistic(self, name: str) -> str:
        """Return the place of a statistic."""
        if self.weights:
            return f"{self.weights}.{name} of model.safetensors"
        return f'"{name}"{f" of the member {self.member}" if self.member else ""} in {FACTS_FILE}'

    def of_member(self, index: int, member: str) -> "Names":
        """Return the places for a member of a mixture, counted from 1."""
        weights = f"{self.weights}.members.{member}" if self.weights else ""
        return Names(weights, member, member_vocabulary(index))


def member_vocabulary(index: int) -> str:
    """Return the file with the vocabulary of a member of a mixture, counted from 1, beside an exported graph."""
    return INPUT_VOCABULARY.replace(".", f"_{index}.")


def describe_preprocessing(tokenizer: Tokenizer, reader: InputReader, names: Names) -> list[str]:
    """Return the steps from a file to the values and positions of the tokens, one sentence or more per step.

    Args:
        tokenizer: The tokenizer.
        reader: The preparation of the raw inputs.
        names: The places that the steps name.
    """
    for kind, describe in DESCRIPTIONS.items():
        if isinstance(tokenizer, kind):
            return describe(tokenizer, reader, names)
    return [
        f"The class `{type(tokenizer).__name__}` reads the input itself, in its method `encode`. The code of the class "
        "is not in this folder."
    ]


def _describe_image(tokenizer: PatchTokenizer, reader: InputReader, names: Names) -> list[str]:
    patch, stride, channels = tokenizer.patch, tokenizer.stride, tokenizer.channels
    size = reader.size if isinstance(reader, ImageReader) else None
    steps = [
        "Decode the picture to 8 bits per channel. A gray value of 16 bits is divided by 257 and rounded. Rotate the "
        "picture as its EXIF orientation requires. Draw transparent pixels on white.",
        "Convert the picture to RGB (3 channels)."
        if channels == 3
        else f"Convert the picture to {channels} channel, gray = 0.299 R + 0.587 G + 0.114 B (Pillow's mode L).",
    ]
    if size is not None:
        steps.append(
            f"If a side is longer than {size} pixels, reduce the picture with Pillow's `thumbnail(({size}, {size}))`, "
            "which keeps the aspect ratio. Decode a large JPEG file with Pillow's `draft(None, "
            f"({2 * size}, {2 * size}))` before. A smaller picture is not enlarged."
        )
    else:
        steps.append("Keep the size of the picture.")
    steps.append(
        f"Cut the picture into patches of {patch} x {patch} pixels, with a step of {stride} pixels from one patch to "
        "the next, from the top left, row by row. Black pixels (0) fill the rest of the last patches. A column of the "
        f"values (uint8, {channels * patch * patch} x N) is a patch in the order channel, row, column. The positions "
        "(int64, 2 x N) are the row and the column of the patch in the grid of patches."
    )
    if tokenizer.class_token is not None:
        steps.append("Add a first column of zeros at position (-1, -1), which becomes the class token.")
    steps.append(
        f"The model divides the values by 255, subtracts the mean {_numbers(tokenizer.mean, names, 'mean')} of each "
        f"channel and divides by the standard deviation {_numbers(tokenizer.std, names, 'std')}."
    )
    return [*steps, *_describe_limit(tokenizer.encoding, "patches along a side")]


def _describe_video(tokenizer: VideoTokenizer, reader: InputReader, names: Names) -> list[str]:
    patch, frames, channels = tokenizer.patch, tokenizer.frames, tokenizer.channels
    return [
        "Decode the frames of an animated GIF to 8 bits per channel, with "
        f"{'gray = 0.299 R + 0.587 G + 0.114 B (Pillow mode L)' if channels == 1 else 'Pillow mode RGB'}. Draw "
        f"transparent pixels on white. A .npy file contains an array (T, H, W, {channels}).",
        f"Cut the clip into blocks of {frames} frames x {patch} x {patch} pixels, in the order time, row, column. "
        "Black pixels (0) fill the rest of the last blocks. A column of the values "
        f"(uint8, {channels * frames * patch**2} x N) is a block in the order channel, frame, row, column. The "
        "positions (int64, 3 x N) are the time step, the row and the column of the block in the grid of blocks.",
        "The model divides the values by 127.5 and subtracts 1.",
        *_describe_limit(tokenizer.encoding, "blocks along an axis"),
    ]


def _describe_audio(tokenizer: FrameTokenizer | WaveformTokenizer, reader: InputReader, names: Names) -> list[str]:
    rate = tokenizer.sample_rate
    return [
        "Decode the sound to float samples from -1 to 1, with all channels.",
        f"Average the channels. If the power of the average is below {MIN_MIX_POWER} times the mean power of the "
        "channels, with or without the constant offset of each channel, take the channel with the most power instead.",
        f"Resample to {rate:,} Hz with `torchaudio.functional.resample` and its default filter (Hann window, width 6, "
        f"rolloff 0.99). A ratio of rates with a term above {MAX_RATIO_TERM:,} is approximated to 0.1 %. Do not scale "
        "the loudness, and do not cut or pad the sound.",
        *(
            _describe_frames(tokenizer)
            if isinstance(tokenizer, FrameTokenizer)
            else _describe_filters(tokenizer, names)
        ),
        _describe_norm(tokenizer.norm, names),
        *_describe_limit(tokenizer.encoding, "tokens along an axis"),
    ]


def _describe_frames(tokenizer: FrameTokenizer) -> list[str]:
    window, hop, bands = tokenizer.win_samples, tokenizer.hop_samples, tokenizer.n_mels
    fft = round(2 * tokenizer.first_center * tokenizer.sample_rate)
    tiles = tokenizer.tiles
    axes = "the time step" if tokenizer.axes == 1 else "the time step and the row of the tile in the grid of tiles"
    return [
        f"Compute the power spectrum of windows of {window} samples (periodic Hann window, centered in an FFT of {fft} "
        f"samples), every {hop} samples, without padding at the ends of the sound.",
        f"Sum the power in {bands} triangular mel bands from 0 to {tokenizer.sample_rate // 2:,} Hz (HTK's mel scale, "
        "filters with a maximum of 1), as `torchaudio.transforms.MelSpectrogram(center=False)` does. Take the natural "
        f"logarithm of the power, at least {POWER_FLOOR:g}.",
        f"Cut the spectrogram into tiles of {tiles.patch[0]} frames x {tiles.patch[1]} bands, with a step of "
        f"{tiles.stride[0]} frames and {tiles.stride[1]} bands, sorted by time and then by band. The value "
        f"{tiles.pad_value:.6f} fills the rest of the last tiles. A column of the values (float32, "
        f"{tiles.patch[0] * tiles.patch[1]} x N) is a tile in the order frame, band. The positions (int64, "
        f"{tokenizer.axes} x N) are {axes}.",
    ]


def _describe_filters(tokenizer: WaveformTokenizer, names: Names) -> list[str]:
    filters = f"the filters {names.weights}.bank" if names.weights else "its learned filters"
    (span, _), (step, _) = tokenizer.tiles.patch, tokenizer.tiles.stride
    return [
        f"Cut the waveform into segments of {span} samples, every {step} samples. Zeros fill the rest of the last "
        f"segment. A column of the values (float32, {span} x N) is a segment. The positions (int64, 1 x N) count the "
        "segments from 0.",
        f"The model multiplies windows of {tokenizer.win_samples} samples, one every {tokenizer.hop_samples} samples "
        f"of a segment, by {filters} (first all cosines, then all sines), adds the squares of the two outputs of "
        f"each pair of filters and {POWER_FLOOR:g}, and takes the natural logarithm.",
    ]


def _describe_norm(norm: SpectrogramNorm, names: Names) -> str:
    std = f"divides by the standard deviation {_numbers(norm.std, names, 'norm.std')}"
    if norm.kind == "example":
        return f"The model subtracts the mean of each band over the tokens of the sound, and {std} of each band."
    bands = "all bands" if norm.kind == "whole" else "each band"
    return f"The model subtracts the mean log power {_numbers(norm.mean, names, 'norm.mean')} of {bands}, and {std}."


SENTENCES = (
    "Cut the text into sentences at white space after a full stop, ! or ?, and encode each sentence alone. A second "
    "row of the positions is the number of the sentence, from 0."
)
"""The preparation of a text for heads that choose a sentence."""


RECASED = (
    "If a text has several words and no lower-case letters, change its letters to lower case, except its first letter. "
    "Words are divided by white space. Encode each later word alone, with a space before it, in lower case and with a "
    "capital as its first letter. Use the capital if the word then has fewer ids. Also use it if the word is one id in "
    "both cases, and the id with the capital is at most half as large. If only one case has no <unk>, use this case."
)
"""The preparation of a text in capitals."""


def _describe_text(tokenizer: SubwordTokenizer, reader: InputReader, names: Names) -> list[str]:
    return [
        "Do not change the text: case, accents, punctuation and spaces are kept.",
        *([RECASED] if tokenizer.recase else []),
        "Add one space before the text, and encode it with Hugging Face's `tokenizers.Tokenizer.from_file(...).encode("
        f"text, add_special_tokens=False)`. The file is {names.vocabulary}, with {len(tokenizer.vocabulary):,} "
        "entries. A text of over 65,536 characters is encoded in parts, each of which ends before the next white "
        "space.",
        *([SENTENCES] if tokenizer.sentences else []),
        *([_describe_codes(tokenizer)] if tokenizer.codes else []),
        *([_describe_characters(tokenizer)] if tokenizer.known_characters else []),
        f"Append the end token {EOS}. The values (int64, N) are the ids, and the positions (int64, 1 x N) count from "
        f"0. The special ids are {PAD} padding, {UNK} unknown, {BOS} begin and {EOS} end.",
        *_describe_limit(tokenizer.encoding, "tokens"),
    ]


def _describe_codes(tokenizer: SubwordTokenizer) -> str:
    ids = ", ".join(f"{tokenizer.vocabulary.extra[code]} for {code}" for code in tokenizer.codes)
    return f"Before the ids of the text, add the id of one of its codes: {ids}."


def _describe_characters(tokenizer: SubwordTokenizer) -> str:
    return f"Refuse a text with other characters than {' '.join(map(repr, tokenizer.vocabulary.characters))}."


def _describe_words(tokenizer: WordTokenizer, reader: InputReader, names: Names) -> list[str]:
    case = " in lower case" if tokenizer.lowercase else ""
    pattern = UNITS[tokenizer.split].pattern
    letters = tokenizer.letters
    return [
        f"Cut the text into units, the matches of `{pattern}`. A sequence of words is not cut.",
        f"Add one space before each unit{case}, and encode the unit with Hugging Face's "
        "`tokenizers.Tokenizer.from_file(...).encode(unit, add_special_tokens=False)`. The file is "
        f"{names.vocabulary}, with {len(tokenizer.vocabulary):,} entries. Keep the first {MAX_PIECES} ids.",
        f"A column of the values (int32, {MAX_PIECES + letters} x N) has the ids of a unit, filled with 0 to "
        f"{MAX_PIECES}, and then 1 plus its UTF-8 bytes with their case, filled with 0 to {letters}. Of a longer unit, "
        f"only the first {letters - letters // 2} and the last {letters // 2} bytes are kept. The positions (int64, 1 "
        "x N) count the units from 0.",
        *_describe_limit(tokenizer.encoding, "words"),
    ]


def _describe_pretrained_text(tokenizer: PretrainedTextTokenizer, reader: InputReader, names: Names) -> list[str]:
    return [
        "Encode the text with Hugging Face's `tokenizers.Tokenizer.from_file(...)`, whose attribute "
        "`encode_special_tokens` is set to True, and its method `encode(text)`, which adds the special entries. The "
        f"file is {names.vocabulary}, with {len(tokenizer.vocabulary):,} entries.",
        "The values (int64, N) are the ids, and the positions (int64, 1 x N) count from 0. An input may have at most "
        f"{tokenizer.length:,} tokens.",
    ]


def _describe_music(tokenizer: PianoRollTokenizer, reader: InputReader, names: Names) -> list[str]:
    rate = reader.steps_per_beat if isinstance(reader, MidiReader) else MidiReader().steps_per_beat
    return [
        f"The input is a list of time steps, {rate} per beat, each a list of the MIDI numbers of the sounding notes.",
        f"A column of the values (uint8, {NUM_NOTES} x N) is a step: row k is 1 if the note {LOWEST_NOTE} + k sounds, "
        "and 0 otherwise. The positions (int64, 1 x N) count the steps from 0.",
        *_describe_limit(tokenizer.encoding, "steps"),
    ]


def _describe_voices(tokenizer: VoiceTokenizer, reader: InputReader, names: Names) -> list[str]:
    return [
        f"The input is a list of time steps, each a list of {tokenizer.voices} MIDI numbers or None for a rest.",
        f"The values (int64, N) are {BEGIN_PIECE}, the begin token, and then an id for each voice of each step: {REST} "
        f"for a rest, and otherwise the MIDI number minus {LOWEST_NOTE - 1}. The positions (int64, 2 x N) are the step "
        f"and the voice of each note from 0, and {NO_POSITION} for the begin token.",
        *_describe_limit(tokenizer.encoding, "steps"),
    ]


def _describe_pixels(tokenizer: PixelTokenizer, reader: InputReader, names: Names) -> list[str]:
    side, grays = tokenizer.side, tokenizer.grays
    return [
        "The input is a square picture. Convert the picture to gray with Pillow.",
        f"Reduce the picture to {side} x {side} pixels with Pillow's filter BOX. Divide the pixels by 255, multiply "
        f"them by {grays - 1}, and round to the nearest integer, or to the even integer from the middle of two.",
        f"The values (int16, N = {side**2 + 1}) are {grays}, the begin token, and then these integers, row by row. The "
        f"positions (int64, 2 x N) are the row and the column of each pixel, and {NO_POSITION} for the begin token.",
    ]


def _describe_samples(tokenizer: SampleTokenizer, reader: InputReader, names: Names) -> list[str]:
    return [
        f"The input is a sound. Mix its channels, and resample it to {tokenizer.sample_rate:,} Hz with torchaudio.",
        "Clip the samples to -1 and 1, and convert them to 8-bit mu-law codes with torchaudio's mu_law_encoding. The "
        f"values (int16, N) are {NUM_CODES}, the begin token, and then the codes. The positions (int64, 1 x N) count "
        "from 0.",
        *_describe_limit(tokenizer.encoding, "tokens"),
    ]


def _describe_items(tokenizer: ItemTokenizer, reader: InputReader, names: Names) -> list[str]:
    return [
        f"The input is a list of item numbers from 1 to {tokenizer.num_items:,}, the oldest first.",
        f"The values (int64, N) are {BEGIN_ITEM}, the begin token, and then the item numbers. The positions (int64, 1 "
        "x N) count from 0.",
        *_describe_limit(tokenizer.encoding, "tokens"),
    ]


def _describe_series(tokenizer: SeriesTokenizer, reader: InputReader, names: Names) -> list[str]:
    return [
        f"The input is an array (channels, time steps).{_describe_channels(reader)}",
        f"The input has the last {tokenizer.context:,} time steps of each channel, without gaps. Subtract the mean of "
        "each channel over these time steps, and divide by its standard deviation (without Bessel's correction). A "
        "constant channel becomes 0.",
        f"Cut each channel into patches of {tokenizer.patch} time steps, with a step of {tokenizer.stride}. The last "
        "value fills the rest of the last patch. A column of the values (float32, "
        f"{tokenizer.patch + 2} x N) is a patch, and below it the mean and the standard deviation of the channel. The "
        "patches of a channel follow one another. The positions (int64, 2 x N) are the number of the channel and the "
        "number of the patch, from 0.",
    ]


def _describe_channels(reader: InputReader) -> str:
    """Return a sentence with the channels of an input, or nothing for a reader without channels."""
    if not isinstance(reader, SeriesReader):
        return ""
    is_short = len(reader.channels) <= MAX_LISTED
    names = ", ".join(reader.channels) if is_short else "listed in config.json"
    if reader.joint:
        return f" The channels are {names}, in this order."
    return f" Each channel is an input of its own. The channels of the training are {names}."


def _describe_mixture(tokenizer: Mixture, reader: InputReader, names: Names) -> list[str]:
    steps = list[str]()
    for index, (member, part) in enumerate(tokenizer.members.items(), start=1):
        described = describe_preprocessing(part, member_reader(reader, member), names.of_member(index, member))
        steps += [f"Member {index}, `{member}`: {step}" for step in described]
    dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in MIXED_DTYPES)
    return [
        *steps,
        "Concatenate the tokens of the members in this order, as int32. Floats keep their bits. Above the values of "
        f"each token are {HEADER} rows: the number of the member, the index of the dtype among {dtypes}, the number of "
        "rows of the values (0 for ids), and the number of axes of the positions. Zeros fill missing rows and axes. A "
        "position of -1 is -1 on all axes.",
    ]


DESCRIPTIONS: dict[type, Callable[[Any, InputReader, Names], list[str]]] = {
    PatchTokenizer: _describe_image,
    VideoTokenizer: _describe_video,
    FrameTokenizer: _describe_audio,
    WaveformTokenizer: _describe_audio,
    SubwordTokenizer: _describe_text,
    WordTokenizer: _describe_words,
    PretrainedTextTokenizer: _describe_pretrained_text,
    PianoRollTokenizer: _describe_music,
    VoiceTokenizer: _describe_voices,
    PixelTokenizer: _describe_pixels,
    SampleTokenizer: _describe_samples,
    ItemTokenizer: _describe_items,
    SeriesTokenizer: _describe_series,
    Mixture: _describe_mixture,
}
"""The function that describes the preparation for each class of tokenizer."""


def _describe_limit(encoding: PositionalEncoding, units: str) -> list[str]:
    """Return a sentence with the largest learned position. Other positional encodings have no limit."""
    if encoding.kind != "learned":
        return []
    return [f"The model has learned positions, so an input may have at most {encoding.lengths[0]:,} {units}."]


def _numbers(values: Tensor, names: Names, statistic: str) -> str:
    """Return equal numbers as one number, and a few numbers as a list. For many numbers, name their weight."""
    numbers = [f"{value:.8g}" for value in dict.fromkeys(values.tolist())]
    if len(numbers) > MAX_LISTED:
        return f"{len(values)} numbers, in {names.statistic(statistic)}"
    listed = ", ".join(numbers if len(numbers) == 1 else [f"{value:.8g}" for value in values.tolist()])
    return listed if len(values) == 1 or len(numbers) == 1 else f"({listed})"


def member_reader(reader: InputReader, member: str) -> InputReader:
    """Return the preparation of the raw inputs of a member of a mixture."""
    return reader.members.get(member, reader) if isinstance(reader, MixtureReader) else reader
