"""The prefix language model: its trunk reads input and text, and belongs to the experiment."""

from collections.abc import Callable

import pytest
import torch

from unifier.datasets.grammar import GrammarPairs
from unifier.experiment import Experiment, Task, Training
from unifier.heads.prefix_lm import PrefixHead
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, SubwordTokenizer, Tokens, Vocabulary
from unifier_tokenizers.subwords import BOS

D = 12


@torch.no_grad()
def test_hidden_states_equal_the_trunks_output(
    vocabulary: Vocabulary, tokens: Tokens, single: Callable[[Tokens, int], Tokens]
) -> None:
    head, trunk, ids = PrefixHead(vocabulary, D), Transformer(D, 2, 2, 10), torch.tensor([[BOS, 5, 7, 4]])
    head.attach_trunk(trunk)
    tokens = single(tokens, 2)
    length = tokens.mask.shape[1]
    parts = zip(tokens, head.embed_text(tokens, ids, 0), strict=True)
    output = trunk(Tokens(*(torch.cat(part, -1) for part in parts)), torch.tensor([length])).matrix
    torch.testing.assert_close(head.hidden_states(tokens, ids), output[:, :, length:].mT)
    # The input does not see the text.
    torch.testing.assert_close(trunk(tokens).matrix, output[:, :, :length])


def test_experiment_attaches_its_trunk(vocabulary: Vocabulary, tokens: Tokens) -> None:
    head, trunk, other = PrefixHead(vocabulary, D), Transformer(D, 1), Transformer(D, 1)
    task = Task(GrammarPairs(train=2, val=1, test=1), SubwordTokenizer(vocabulary, D), head)
    Experiment(trunk, {"task": task}, Training(steps=1), "prefix")
    assert head.trunk is trunk
    assert not set(head.parameters()) & set(trunk.parameters())
    Experiment(other, {"task": task}, Training(steps=1), "joint")
    assert head.trunk is other, "a joint experiment replaces the trunk"
    assert head.run_trunk(other, tokens) is tokens
    with pytest.raises(InputError, match="MeanAttentionTrunk"):
        Experiment(MeanAttentionTrunk(D, 1), {"task": task}, Training(steps=1), "mean")
