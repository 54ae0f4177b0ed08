"""Classification and tagging of sounds, such as music, spoken digits and noises."""

from typing import Literal

import unifier as uf
from unifier.datasets import create_audio_dataset
from unifier.options import (
    FRAME_SECONDS,
    AudioAugmentationConfig,
    AudioFrontend,
    ClassifierConfig,
    ClipStatistics,
    TrunkConfig,
)

TRUNK = TrunkConfig(depth=3, heads=4, ffn_dim=256)
TRAINING = uf.Training(optimizer="muon", learning_rate=5e-3, batch_tokens=2048, precision="bf16")
AUGMENTATION = AudioAugmentationConfig(mixup=0.2, speed_perturb=0.2, time_masks=2)
PLAIN_FRAMES = AudioFrontend(stem=None, normalize="whole")
PLAIN = AudioAugmentationConfig(crop=0, freq_shift=0, gain=0)


def genres(
    *,
    data: str = "embedded",
    target: Literal["genre", "tags"] = "genre",
    fold: int | None = None,
    allow_outside: bool = False,
    frontend: AudioFrontend = AudioFrontend(),
    trunk: TrunkConfig = TRUNK,
    head: ClassifierConfig = ClassifierConfig(),
    augmentation: AudioAugmentationConfig = AUGMENTATION,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Classify or tag sounds.

    Args:
        data: embedded (rendered music), emotify, fma, gtzan, fsdd, esc10, esc50, a folder of class folders, a CSV
            table, or datasets:DIR or parquet:DIR.
        target: Either genre (one class per sound), or tags (for embedded, emotify, fma and your own table).
        fold: The fold that is tested: 0 to 4 for emotify, 1 to 5 for ESC, 0 to 5 for fsdd, or a fold of your own table.
        allow_outside: True if your own table or folder may name or link files outside. Give this only if you trust it.
    """
    source = create_audio_dataset(data, target=target, fold=fold, allow_outside=allow_outside)
    clips = ClipStatistics(source, target)
    tokenizer = frontend.build(source, trunk, clips, training.bad_examples)
    augmentation = augmentation.resolve(frontend, clips, target)
    task = uf.Task(
        source,
        tokenizer,
        head.build(source, trunk.dim, tags=target == "tags", class_token=False),
        augmentation=augmentation.build(tokenizer, len(source.labels)),
        tta=augmentation.tta(tokenizer),
    )
    seconds = min(clips.median, augmentation.crop or clips.median)
    batch_examples = training.batch_tokens * frontend.frames_per_token(clips) * FRAME_SECONDS / seconds
    training = training.sized_for(source, f"{source.name}-{target}", batch_examples=batch_examples)
    return uf.Experiment(trunk.build(), {source.name: task}, training)


if __name__ == "__main__":
    uf.run_this_file(__file__)
