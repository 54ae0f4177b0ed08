"""Pretraining without labels: parts of the inputs are hidden, and the model predicts the hidden parts."""

import unifier as uf
from unifier.datasets import (
    SeriesWindows,
    create_audio_dataset,
    create_image_dataset,
    create_plain_text_dataset,
    modality_of,
)
from unifier.options import (
    AudioAugmentationConfig,
    AudioFrontend,
    ClipStatistics,
    ImageAugmentationConfig,
    ImageFrontend,
    MaskedPatchesConfig,
    MaskedTextConfig,
    SeriesFrontend,
    TrunkConfig,
)

TEXT, PATCHES = MaskedTextConfig(), MaskedPatchesConfig()
IMAGE, SOUND, SERIES = ImageFrontend(stem=None), AudioFrontend(stem=None), SeriesFrontend(stride=16)
TRUNK = TrunkConfig(depth=2, heads=4, ffn_dim=256)
TRAINING = uf.Training(optimizer="muon", learning_rate=2e-3, precision="bf16", num_validations=4)


def pretrain(
    *,
    data: str = "movie_reviews",
    piece_words: int = 64,
    languages: tuple[str, ...] = (),
    flip: bool = False,
    text: MaskedTextConfig = TEXT,
    patches: MaskedPatchesConfig = PATCHES,
    image: ImageFrontend = IMAGE,
    sound: AudioFrontend = SOUND,
    series: SeriesFrontend = SERIES,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Hide words, patches or frames, and predict them. A recipe with start=RUN then starts from the trained model.

    Args:
        data: movie_reviews, wiki_articles, squad_dev, multi30k, protein_ss or a text file; mnist, fashion_mnist,
            cifar10, cifar10_jpg or class folders; emotify, gtzan, fsdd, esc10, esc50 or a CSV table of sounds; etth1,
            beijing_weather or los_speed (each channel on its own); datasets:DIR, parquet:DIR or torchvision:CLASS.
        piece_words: Number of words of an example; texts are cut into pieces, but proteins are not.
        languages: Languages of data=multi30k, such as en,de; () means all four languages.
        flip: Mirror half of the training pictures left to right.
    """
    modality = modality_of(data)
    if languages and modality != "text":
        raise uf.InputError(f"languages={','.join(languages)}: only data=multi30k has languages; leave it out")
    groups = {
        "text": {"text": (text, TEXT)},
        "image": {"image": (image, IMAGE)},
        "audio": {"sound": (sound, SOUND)},
        "series": {"series": (series, SERIES)},
    }
    for other in groups.keys() - {modality}:
        for name, (given, default) in groups[other].items():
            if given != default:
                raise uf.InputError(f"data={data}: the settings of {name} do not apply to this data; leave them out")
    match modality:
        case "text":
            residues = data == "protein_ss"
            if residues and not languages:
                source = uf.datasets.ProteinSS()
            else:
                source = create_plain_text_dataset(data, words=piece_words, languages=languages)
            task = text.build(source, source.name, trunk, training, residues=residues)
        case "image":
            source = create_image_dataset(data, size=image.size)
            tokenizer = image.build(source, trunk, "mean", training.bad_examples)
            augmentation = ImageAugmentationConfig(flip=flip).build(tokenizer, len(source.labels))
            task = patches.build(source, tokenizer, augmentation)
        case "audio":
            source = create_audio_dataset(data)
            clips = ClipStatistics(source, "genre")
            tokenizer = sound.build(source, trunk, clips, training.bad_examples)
            # A whole clip is read, because validation reads whole clips too.
            changes = AudioAugmentationConfig(crop=0).resolve(sound, clips, "genre")
            task = patches.build(source, tokenizer, changes.build(tokenizer, len(source.labels)))
        case "series":
            source = SeriesWindows(data, context=series.context, horizon=0)
            task = patches.build(source, series.build(trunk))
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
