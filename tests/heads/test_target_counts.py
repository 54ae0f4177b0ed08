"""The numbers of targets that weight the losses of several processes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from unifier import (
    ClassificationHead,
    CTCHead,
    LanguageModelingHead,
    MaskedLanguageModelingHead,
    MaskedReconstructionHead,
    MultiLabelNextHead,
    NextItemHead,
    PrefixHead,
    RegressionHead,
    TaggingHead,
    TokenClassificationHead,
    Transformer,
    TranslationHead,
)
from unifier.heads.hard_attention import HardAttentionHead
from unifier.heads.head import Head
from unifier.heads.masked_reconstruction import join_target
from unifier_tokenizers import Tokens, Vocabulary
from unifier_tokenizers.shares import BatchShare, use_share

D = 12
IDS = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7, 8], [5, 6, *[-100] * 7], [7, -100, 8, 9, *[-100] * 5]])
HIDDEN = torch.tensor([[[0], [3], [-1]], [[2], [-1], [-1]], [[1], [2], [4]]]).mT
MASKED = Vocabulary.fit(["a b c d e f g"], level="word", extra=("<mask>",))
PER_HEAD: dict[str, Callable[[Vocabulary], tuple[Head, Tensor]]] = {
    "label": lambda _: (ClassificationHead("abc", D, dropout=0.3), torch.tensor([0, 2, 1])),
    "mixed labels": lambda _: (ClassificationHead("abc", D), torch.eye(3)[..., None]),
    "tags": lambda _: (TaggingHead("abc", D), torch.eye(3)),
    "numbers": lambda _: (RegressionHead("ab", D, mean=[0, 0], std=[1, 1]), torch.randn(3, 2)),
    "symbols": lambda _: (CTCHead("abcdefghij", D), IDS[:, :2]),
    "words": lambda _: (TokenClassificationHead("abcdefghij", D, label_smoothing=0.1), IDS),
    "text": lambda words: (TranslationHead(words, D, depth=1, heads=2, dropout=0.3, label_smoothing=0.1), IDS),
    "r-drop": lambda words: (TranslationHead(words, D, depth=1, heads=2, dropout=0.3, r_drop=1.0), IDS),
    "hard attention": lambda words: (HardAttentionHead(words, D, depth=1, dropout=0.3), IDS),
    "prefix": lambda words: (PrefixHead(words, D, dropout=0.3), IDS),
    "next token": lambda words: (LanguageModelingHead(len(words), D), IDS),
    "hidden token": lambda _: (MaskedLanguageModelingHead(MASKED, D, embedding=nn.Embedding(len(MASKED), D)), IDS),
    "next item": lambda _: (NextItemHead(nn.Embedding(11, D), dropout=0.3), IDS),
    "notes": lambda _: (MultiLabelNextHead(4, D), (IDS[:, None] - 5).clamp(max=1).expand(3, 4, 9)),
    "patches": lambda _: (MaskedReconstructionHead(5, D), join_target(torch.randn(3, 5, 3), HIDDEN)),
}


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("kind", PER_HEAD)
def test_losses_of_shares_add_up(kind: str, size: int, tokens: Tokens, vocabulary: Vocabulary) -> None:
    head, target = PER_HEAD[kind](vocabulary)
    trunk = Transformer(D, 2, 2, 20, dropout=0.3, drop_path=0.2)
    head.attach_trunk(trunk)
    counts = head.target_counts(target).tolist()

    def loss(share: BatchShare) -> Tensor:
        torch.manual_seed(7)
        parts = [share.rows(part).repeat(head.num_passes, *[1] * (part.ndim - 1)) for part in (*tokens, target)]
        with use_share(share):
            return share.weight * head.loss(head.run_trunk(trunk, Tokens(*parts[:3])), parts[3])

    total = torch.stack([loss(BatchShare.of(counts, rank, size)) for rank in range(size)]).sum()
    whole = loss(BatchShare.of(counts, 0, 1))
    torch.testing.assert_close(total, whole)
    whole.backward()
    gradients = [parameter.grad.clone() for parameter in trunk.parameters() if parameter.grad is not None]
    trunk.zero_grad()
    total.backward()
    torch.testing.assert_close(
        [parameter.grad for parameter in trunk.parameters() if parameter.grad is not None], gradients
    )
