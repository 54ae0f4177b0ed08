"""Three data sets that need no file and no network."""

from unifier.data.embedded.digits import Digits
from unifier.data.embedded.grammar import GrammarPairs, SentencePairs
from unifier.data.embedded.music import Score, SyntheticMusic

__all__ = ["Digits", "GrammarPairs", "Score", "SentencePairs", "SyntheticMusic"]
