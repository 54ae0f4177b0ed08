"""Settings of learning without labels, from hidden subwords, patches and frames."""

from dataclasses import dataclass, replace
from typing import Any, Literal, final

from unifier.data.dataloader import Augmentation
from unifier.data.source import Source
from unifier.experiment import Task, Training
from unifier.heads.masked_language_modeling import MASK, MaskedLanguageModelingHead, Teacher
from unifier.heads.masked_reconstruction import MaskedReconstructionHead
from unifier.heads.replaced_token_detection import ReplacedTokenDetectionHead
from unifier.models.folder import find_earlier_model, read_model
from unifier.objectives.masked_patches import MaskedPatches
from unifier.objectives.masked_spans import MaskedSpans
from unifier.objectives.masked_tokens import MaskedTokens
from unifier.options.decoder import DecoderConfig
from unifier.options.trunk import TrunkConfig
from unifier.options.vocabulary import learn_vocabulary, learn_word_vocabulary
from unifier_tokenizers import InputError, PatchTokenizer, SeriesTokenizer, SubwordTokenizer, WordTokenizer
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.errors import check_choice, check_share


@final
@dataclass(frozen=True)
class MaskedTextConfig:
    """Settings of a masked language model, which learns from texts without labels."""

    vocabulary: int = 4000
    """Number of subwords in the vocabulary; with start=RUN, the vocabulary of the trained model is used."""
    hidden_share: float = 0.15
    """Share of the subwords of a text that are hidden and predicted."""
    unit: Literal["subwords", "words"] = "subwords"
    """Kind of token: subwords for the recipes of texts, or words with their letters for token_classification."""
    objective: Literal["masked", "replaced", "spans"] = "masked"
    """masked (BERT) predicts hidden subwords, replaced (ELECTRA) finds false ones, and spans (BART) writes the text."""
    generator_dim: int | None = None
    """Number of features of a token in the generator of objective=replaced; None means dim / 2."""
    teacher: str | None = None
    """Trained model of objective=masked whose soft predictions are learned too (DistilBERT): a run or a model."""

    def build(
        self, source: Source, name: str, trunk: TrunkConfig, training: Training, *, residues: bool = False
    ) -> Task:
        """Create a task. The head predicts the hidden subwords with the tokenizer's embedding.

        Args:
            source: The texts.
            name: The name of the task.
            trunk: The settings of the trunk.
            training: The settings of the training.
            residues: True if each character of a text is a token, as in proteins. The tokenizer is that of the recipe
                `token_classification`.

        Raises:
            InputError: If a setting does not belong to the objective.
        """
        check_choice("objective", self.objective, ("masked", "replaced", "spans"))
        check_share("hidden_share", self.hidden_share)
        words = check_choice("unit", self.unit, ("subwords", "words")) == "words"
        if words and (residues or self.objective != "masked"):
            raise InputError("unit=words: only objective=masked hides words, and proteins have no words; leave it out")
        if self.teacher is not None and self.objective != "masked":
            raise InputError(f"teacher={self.teacher}: only objective=masked has a teacher; leave it out")
        if self.generator_dim is not None and self.objective != "replaced":
            raise InputError(
                f"generator_dim={self.generator_dim}: only objective=replaced has a generator; leave it out"
            )
        if self.teacher is not None and training.start is None:
            training = replace(training, start=self.teacher, start_tokenizers=True)  # The vocabularies must be equal.
        options: dict[str, Any] = {"positions": trunk.input_positions, "dropout": trunk.dropout}
        if residues:
            subwords = learn_word_vocabulary(source, name, self.vocabulary, training, level="character", extra=(MASK,))
            tokenizer = WordTokenizer(
                subwords, trunk.dim, split="characters", letters=0, lowercase=False, word_dropout=0.0, **options
            )
        elif words:
            subwords = learn_word_vocabulary(source, name, self.vocabulary, training, extra=(MASK,))
            tokenizer = WordTokenizer(subwords, trunk.dim, **options)
        else:
            subwords = learn_vocabulary(name, source, self.vocabulary, training, extra=(MASK,))
            tokenizer = SubwordTokenizer(subwords, trunk.dim, **options)
        if self.objective == "replaced":
            detector = ReplacedTokenDetectionHead(
                subwords,
                trunk.dim,
                embedding=tokenizer.embedding,
                generator_dim=self.generator_dim,
                generator_depth=trunk.depth,
                dropout=trunk.dropout,
            )
            hidden = MaskedTokens(subwords, self.hidden_share, mask_share=1.0, random_share=0.0)
            return Task(source, tokenizer, detector, objective=hidden)
        if self.objective == "spans":
            decoder = DecoderConfig(decoder_depth=trunk.depth, length_penalty=1.0)
            writer = decoder.build(subwords, trunk, tokenizer.embedding)
            return Task(source, tokenizer, writer, objective=MaskedSpans(subwords, self.hidden_share))
        head = MaskedLanguageModelingHead(subwords, trunk.dim, embedding=tokenizer.embedding)
        if self.teacher is not None:
            head.learn_from(_read_teacher(self.teacher))
        return Task(source, tokenizer, head, objective=MaskedTokens(subwords, self.hidden_share))


def _read_teacher(folder: str) -> Teacher:
    """Read a trained masked language model. Raises InputError if the model has another kind of head."""
    stored = read_model(find_earlier_model(folder))
    for task in stored.tasks.values():
        if isinstance(task.head, MaskedLanguageModelingHead):
            return Teacher(task.tokenizer, stored.trunk, task.head, stored.name, stored.sha256, stored.facts)
    raise InputError(f"teacher={folder}: this model predicts no hidden words; give a run of pretrain, objective=masked")


@final
@dataclass(frozen=True)
class MaskedPatchesConfig:
    """Settings of a masked autoencoder, which learns from pictures, sounds or series without labels."""

    hidden_patches: float = 0.75
    """Share of the patches or frames that are hidden from the trunk and predicted by the decoder."""
    decoder_depth: int = 2
    """Number of layers of the decoder that predicts the hidden patches or frames."""
    decoder_width: int | None = None
    """Number of features of a token in the decoder; None means about half of dim."""

    def build(
        self,
        source: Source,
        tokenizer: PatchTokenizer | AudioTokenizer | SeriesTokenizer,
        augmentation: Augmentation | None = None,
    ) -> Task:
        """Create a task, or raise InputError if the tokenizer's patches or frames cannot be hidden."""
        check_share("hidden_patches", self.hidden_patches)
        objective = MaskedPatches(tokenizer, self.hidden_patches)
        head = MaskedReconstructionHead(
            objective.num_values, tokenizer.dim, width=self.decoder_width, depth=self.decoder_depth
        )
        return Task(source, tokenizer, head, augmentation=augmentation, objective=objective)
