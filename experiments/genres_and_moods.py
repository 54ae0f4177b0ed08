"""Joint training on the genres and the moods of the same music, with one tokenizer and one trunk."""

from dataclasses import replace

import unifier as uf
from genres import AUGMENTATION, TRAINING, TRUNK, genres
from unifier.options import AudioAugmentationConfig, AudioFrontend, TrunkConfig


def genres_and_moods(
    *,
    data: str = "embedded",
    fold: int | None = None,
    frontend: AudioFrontend = AudioFrontend(),
    trunk: TrunkConfig = TRUNK,
    augmentation: AudioAugmentationConfig = AUGMENTATION,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Classify the genre of each sound, and tag its moods.

    Args:
        data: A data set with labels for genres and moods: embedded or emotify.
        fold: For emotify, the fold that is tested, from 0 to 4.
    """

    def labeled(name: str, target: str) -> uf.Experiment:
        part = genres(
            data=data,
            target="tags" if target == "tags" else "genre",
            fold=fold,
            frontend=frontend,
            trunk=trunk,
            augmentation=augmentation,
            training=training,
        )
        (task,) = part.tasks.values()
        return replace(part, tasks={name: task})

    joint = uf.merge_experiments([labeled("genre", "genre"), labeled("moods", "tags")])
    tokenizer = joint.tasks["genre"].tokenizer
    tasks = {name: replace(task, tokenizer=tokenizer) for name, task in joint.tasks.items()}
    return replace(joint, name="genres_and_moods", tasks=tasks)


if __name__ == "__main__":
    uf.run_this_file(__file__)
