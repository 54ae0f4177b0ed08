"""The numbers of the preparation of a model's inputs, for programs that run an exported graph."""

from typing import Any

from unifier.data.inputs import ImageReader, InputReader
from unifier.models.preprocessing import INPUT_VOCABULARY, member_reader, member_vocabulary
from unifier_tokenizers import (
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
from unifier_tokenizers.audio import POWER_FLOOR
from unifier_tokenizers.items import BEGIN_ITEM
from unifier_tokenizers.mixture import HEADER, MIXED_DTYPES
from unifier_tokenizers.piano_roll import LOWEST_NOTE, NUM_NOTES
from unifier_tokenizers.positions import PositionalEncoding
from unifier_tokenizers.samples import NUM_CODES
from unifier_tokenizers.subwords import BOS, EOS, PAD, UNK
from unifier_tokenizers.voices import BEGIN_PIECE, REST


def preprocessing_facts(
    tokenizer: Tokenizer, reader: InputReader, vocabulary: str = INPUT_VOCABULARY
) -> dict[str, Any]:
    """Return the numbers of the steps of `describe_preprocessing`, for programs.

    Args:
        tokenizer: The tokenizer.
        reader: The preparation of the raw inputs.
        vocabulary: The file with the vocabulary of a tokenizer for texts.
    """
    encoding = getattr(tokenizer, "encoding", None)
    limit = encoding.lengths[0] if isinstance(encoding, PositionalEncoding) and encoding.kind == "learned" else None
    facts: dict[str, Any] = {"class": type(tokenizer).__name__, "max_position": limit}
    facts |= {"vocabulary": vocabulary} if hasattr(tokenizer, "vocabulary") else {}
    if isinstance(tokenizer, PatchTokenizer):
        size = reader.size if isinstance(reader, ImageReader) else None
        grid = {name: getattr(tokenizer, name) for name in ("channels", "patch", "stride")}
        facts |= grid | {"max_side": size, "resampling": "Pillow's thumbnail, bicubic, reducing_gap 2.0"}
        facts |= {"class_token": tokenizer.class_token is not None}
        facts |= {"mean": tokenizer.mean.tolist(), "std": tokenizer.std.tolist()}
    elif isinstance(tokenizer, VideoTokenizer):
        facts |= {name: getattr(tokenizer, name) for name in ("channels", "frames", "patch")}
    elif isinstance(tokenizer, FrameTokenizer | WaveformTokenizer):
        facts |= {"sample_rate": tokenizer.sample_rate, "window": tokenizer.win_samples, "hop": tokenizer.hop_samples}
        if isinstance(tokenizer, FrameTokenizer):
            facts |= {"fft": round(2 * tokenizer.first_center * tokenizer.sample_rate), "mel_bands": tokenizer.n_mels}
            facts |= {"min_power": POWER_FLOOR}
        tiles = tokenizer.tiles
        facts |= {"tile": list(tiles.patch), "tile_step": list(tiles.stride), "fill": tiles.pad_value}
        facts |= {"position_axes": tokenizer.axes, "normalization": tokenizer.norm.kind}
        facts |= {"norm.mean": tokenizer.norm.mean.tolist(), "norm.std": tokenizer.norm.std.tolist()}
    elif isinstance(tokenizer, SubwordTokenizer | WordTokenizer):
        facts |= {"pad": PAD, "unknown": UNK, "begin": BOS, "end": EOS}
    elif isinstance(tokenizer, PretrainedTextTokenizer):
        facts["max_position"] = tokenizer.length
    elif isinstance(tokenizer, PianoRollTokenizer):
        facts |= {"lowest_note": LOWEST_NOTE, "notes": NUM_NOTES}
    elif isinstance(tokenizer, VoiceTokenizer):
        facts |= {"begin": BEGIN_PIECE, "rest": REST, "lowest_note": LOWEST_NOTE, "voices": tokenizer.voices}
    elif isinstance(tokenizer, PixelTokenizer):
        facts |= {"begin": tokenizer.grays, "side": tokenizer.side, "grays": tokenizer.grays}
    elif isinstance(tokenizer, SampleTokenizer):
        facts |= {"begin": NUM_CODES, "sample_rate": tokenizer.sample_rate, "quantization": "mu-law, 8 bits"}
    elif isinstance(tokenizer, ItemTokenizer):
        facts |= {"begin": BEGIN_ITEM, "items": tokenizer.num_items}
    elif isinstance(tokenizer, SeriesTokenizer):
        facts |= {name: getattr(tokenizer, name) for name in ("context", "patch", "stride")}
    elif isinstance(tokenizer, Mixture):
        facts |= {"header": HEADER, "dtypes": [str(dtype).removeprefix("torch.") for dtype in MIXED_DTYPES]}
        facts["members"] = {
            member: preprocessing_facts(part, member_reader(reader, member), member_vocabulary(index))
            for index, (member, part) in enumerate(tokenizer.members.items(), start=1)
        }
    return facts
