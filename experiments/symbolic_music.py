"""Modeling of symbolic music: which notes sound in the next time step, or the notes of four voices one by one."""

import unifier as uf
from unifier.augmentation import Transpose, TransposeVoices
from unifier.datasets import JSBNotes, create_symbolic_music
from unifier.options import TrunkConfig

TRUNK = TrunkConfig(dim=128, depth=4, heads=4, ffn_dim=256, dropout=0.2, positions="rotary")
TRAINING = uf.Training(optimizer="muon", learning_rate=2e-3, batch_tokens=2048, precision="bf16", num_validations=20)


def symbolic_music(
    *,
    data: str = "jsb_chorales",
    steps_per_beat: int | None = None,
    transpose: int = 6,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Predict the notes of the next time step of a piece, or the next note of four voices.

    Args:
        data: jsb_chorales, nottingham, muse_data, piano_midi, jsb_notes (chorales in sixteenths, note by note), or a
            folder of your own MIDI files.
        steps_per_beat: Number of time steps per beat of your own MIDI files; None means 2.
        transpose: Largest random shift of a training piece, in semitones; 0 means that pieces keep their key.
    """
    source = create_symbolic_music(data, steps_per_beat=steps_per_beat)
    if isinstance(source, JSBNotes):
        voices = uf.VoiceTokenizer(
            trunk.dim, voices=source.voices, positions=trunk.input_positions, dropout=trunk.dropout
        )
        writer = uf.LanguageModelingHead(voices.num_ids, trunk.dim, unit="note")
        shift = TransposeVoices(transpose) if transpose else None
        task = uf.Task(
            source, voices, writer, augmentation=shift, objective=uf.NextToken(), score_range=source.score_range
        )
        training = training.sized_for(source, source.name)
        return uf.Experiment(trunk.build(causal=True), {source.name: task}, training)
    tokenizer = uf.PianoRollTokenizer(trunk.dim, positions=trunk.input_positions, dropout=trunk.dropout)
    head = uf.MultiLabelNextHead(
        tokenizer.num_notes, trunk.dim, first_label=tokenizer.lowest_note, dropout=trunk.dropout
    )
    augmentation = Transpose(transpose) if transpose else None
    score_range = getattr(source, "score_range", None)  # Your own MIDI files have none.
    task = uf.Task(
        source, tokenizer, head, augmentation=augmentation, objective=uf.NextToken(), score_range=score_range
    )
    return uf.Experiment(trunk.build(causal=True), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
