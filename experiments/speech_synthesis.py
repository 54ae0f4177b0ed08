"""Speech synthesis: the spectrogram of a spoken text, which Griffin and Lim's method makes audible."""

import unifier as uf
from unifier.datasets import FSDDStrings, SpokenTexts, create_speech_dataset
from unifier.options import SpectrogramDecoderConfig, TrunkConfig

PAUSE = 0.1
"""The pause after each digit, in seconds. A constant pause can be learned from the text, unlike a random pause."""

TRUNK = TrunkConfig(dim=128, depth=2, heads=4, ffn_dim=512, dropout=0.1)
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, batch_tokens=256, precision="bf16", num_validations=20)


def speech_synthesis(
    *,
    data: str = "fsdd_strings",
    train: int = 4000,
    held_out: int = 100,
    lengths: tuple[int, int] = (3, 7),
    decoder: SpectrogramDecoderConfig = SpectrogramDecoderConfig(),
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Speak strings of digits with the voices of six speakers, or the sentences of one speaker.

    Args:
        data: fsdd_strings (digits), voice_prompts or voice_prompts_fr (sentences) in the data folder, or datasets:DIR
            or parquet:DIR (sentences).
        train: For digits, the number of strings that are composed for training.
        held_out: For digits, the number of strings of val, and of test, composed of recordings that are not in
            training.
        lengths: For digits, the smallest and the largest number of digits in a string.
    """
    if data == "fsdd_strings":
        source = SpokenTexts(FSDDStrings(None, train=train, held_out=held_out, lengths=lengths, pauses=(PAUSE, PAUSE)))
    else:
        for name, given, default in (("train", train, 4000), ("held_out", held_out, 100), ("lengths", lengths, (3, 7))):
            if given != default:
                raise uf.InputError(f"{name}={given}: this setting is for digits, and data={data} has sentences")
        source = SpokenTexts(create_speech_dataset(data))
    vocabulary = uf.Vocabulary.fit((source.characters,), size=600, level="character", extra=source.codes)
    tokenizer = uf.SubwordTokenizer(
        vocabulary,
        trunk.dim,
        positions=trunk.input_positions,
        dropout=trunk.dropout,
        codes=source.codes,
        known_characters=True,
    )
    task = uf.Task(source, tokenizer, decoder.build(source, tokenizer, trunk))
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
