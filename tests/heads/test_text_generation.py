"""The contract that every text generation head keeps: search, sampling, causality, padding, attention and learning."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.heads.conftest import randomize, replace_column
from unifier.heads.conv_decoder import ConvDecoderHead
from unifier.heads.generation import beam_search, sample
from unifier.heads.hard_attention import HardAttentionHead
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.prefix_lm import PrefixHead
from unifier.heads.rnn_decoders import AdditiveHead, LuongHead, RecurrentHead
from unifier.heads.text_generation import AttentiveTextHead, TextGenerationHead, shift_right
from unifier.heads.text_metrics import text_scores
from unifier.heads.transformer_decoder import TranslationHead
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, Tokens, Vocabulary
from unifier_tokenizers.subwords import BOS, EOS, PAD

D, B = 12, 3
Single = Callable[[Tokens, int], Tokens]


def prefix_head(vocabulary: Vocabulary, *, rotary: bool = False) -> PrefixHead:
    """Return a prefix head that also owns its trunk, so that the tests train both."""
    head, trunk = PrefixHead(vocabulary, D), Transformer(D, 2, 2, 10, rotary=rotary)
    head.attach_trunk(trunk)
    head.add_module("stack", trunk)
    return head


HEADS: dict[str, Callable[[Vocabulary], TextGenerationHead]] = {
    "gru": lambda v: RecurrentHead(v, D, depth=2, cell="gru"),
    "lstm": lambda v: RecurrentHead(v, D, depth=2, cell="lstm"),
    "additive": lambda v: AdditiveHead(v, D, depth=1),
    "additive_lstm": lambda v: AdditiveHead(v, D, depth=2, cell="lstm"),
    "dot": lambda v: LuongHead(v, D, depth=2, score="dot"),
    "general": lambda v: LuongHead(v, D, depth=1, cell="gru"),
    "concat": lambda v: LuongHead(v, D, depth=1, score="concat"),
    "local": lambda v: LuongHead(v, D, depth=1, span="local", window=2),
    "hard": lambda v: HardAttentionHead(v, D, depth=1),
    "convolutional": lambda v: ConvDecoderHead(v, D, depth=2, kernel_size=3),
    "parameter_free": lambda v: TranslationHead(v, D, depth=2, heads=1, ffn_dim=10, projections=False),
    "single_head": lambda v: TranslationHead(v, D, depth=2, heads=1, ffn_dim=10),
    "prefix": prefix_head,
    "prefix_rotary": lambda v: prefix_head(v, rotary=True),
    "transformer": lambda v: TranslationHead(v, D, depth=2, heads=2, ffn_dim=10),
}


@pytest.fixture(params=HEADS)
def head(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> TextGenerationHead:
    return randomize(HEADS[request.param](vocabulary))


class UncachedDecoder:
    """An incremental decoder that computes the whole text again for each token."""

    def __init__(self, head: TextGenerationHead, tokens: Tokens) -> None:
        self.head, self.tokens = head, tokens
        self.ids = torch.empty(len(tokens.mask), 0, dtype=torch.long)

    def step(self, ids: Tensor) -> Tensor:
        self.ids = torch.cat([self.ids, ids[:, None]], 1)
        return self.head.next_token_log_probs()(self.head.hidden_states(self.tokens, self.ids)[:, -1])

    def reorder(self, rows: Tensor) -> None:
        self.ids, self.tokens = self.ids[rows], Tokens(*(part[rows] for part in self.tokens))


def forced_score(head: TextGenerationHead, tokens: Tokens, ids: list[int], penalty: float = 1.0) -> float:
    """Score a text of a single example by teacher forcing; at the maximum length, it has no end token."""
    limit = int(head.max_lengths(tokens))
    text = torch.tensor([BOS, *ids, *([] if len(ids) == limit else [EOS])])
    logs = head.project(head.hidden_states(tokens, text[None, :-1]))[0].log_softmax(-1)
    return logs.gather(1, text[1:, None]).sum().item() / (len(text) - 1) ** penalty


@pytest.mark.slow
@pytest.mark.parametrize("beam_width", [1, 3])
@torch.no_grad()
def test_cached_search_equals_uncached(head: TextGenerationHead, tokens: Tokens, beam_width: int) -> None:
    uncached = beam_search(UncachedDecoder(head, tokens), head.max_lengths(tokens), beam_width)
    for expected, cached in zip(uncached, head.search(tokens, beam_width), strict=True):
        assert [text.ids for text in cached] == [text.ids for text in expected]
        assert [text.score for text in cached] == pytest.approx([text.score for text in expected], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("beam_width", "penalty"), [(1, 0.0), (3, 1.0)])
@torch.no_grad()
def test_search_equals_single_and_forced(
    head: TextGenerationHead, tokens: Tokens, beam_width: int, penalty: float, single: Single
) -> None:
    """A batch gives the texts of each single example, with the scores of teacher forcing."""
    head.length_penalty = penalty
    batch = head.search(tokens, beam_width)
    assert len({round(texts[0].score, 3) for texts in batch}) == B, "the tokens are not read"
    for b, limit in enumerate(head.max_lengths(tokens).tolist()):
        assert limit == 2 * int(tokens.mask[b].sum()) + 16
        (texts,) = head.search(single(tokens, b), beam_width)
        assert 1 <= len(texts) <= beam_width
        assert [text.ids for text in texts] == [text.ids for text in batch[b]]
        for ids, score in batch[b]:
            assert len(ids) <= limit
            assert score == pytest.approx(forced_score(head, single(tokens, b), ids, penalty), abs=1e-3)


@pytest.mark.slow
@torch.no_grad()
def test_samples_equal_uncached_and_forced(head: TextGenerationHead, tokens: Tokens, single: Single) -> None:
    def generators() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(b) for b in range(B)]

    texts = head.sample(tokens, generators(), temperature=0.8, top_k=10, top_p=0.9)
    limits = head.max_lengths(tokens)
    uncached = UncachedDecoder(head, tokens)
    expected = sample(uncached, limits, generators(), temperature=0.8, top_k=10, top_p=0.9)
    assert [text.ids for text in texts] == [text.ids for text in expected]
    for b, (ids, score) in enumerate(texts):
        (alone,) = head.sample(single(tokens, b), generators()[b : b + 1], temperature=0.8, top_k=10, top_p=0.9)
        assert alone.ids == ids
        assert score == pytest.approx(forced_score(head, single(tokens, b), ids), abs=1e-3)
    most_likely = head.sample(tokens, generators(), top_k=1)
    assert [text.ids for text in most_likely] == [texts[0].ids for texts in head.search(tokens, 1)]


@pytest.mark.slow
@torch.no_grad()
def test_texts_have_no_padding_or_begin(head: TextGenerationHead, tokens: Tokens) -> None:
    nn.init.zeros_(head.output.weight)  # All tokens have the same probability.
    generators = [torch.Generator().manual_seed(b) for b in range(B)]
    for texts in (head.search(tokens, len(head.vocabulary)), [head.sample(tokens, generators)]):
        ids = {token for example in texts for text in example for token in text.ids}
        assert ids
        assert not ids & {PAD, BOS}


@torch.no_grad()
def test_steps_from_a_state_equal_the_hidden_states(head: TextGenerationHead, tokens: Tokens) -> None:
    ids = torch.randint(4, len(head.vocabulary), (3, 6))
    state, hidden = head.start_decoding(tokens), list[Tensor]()
    for k in range(6):
        step, state = head.step(ids[:, k : k + 1], state)
        hidden.append(step)
    torch.testing.assert_close(torch.cat(hidden, 1), head.hidden_states(tokens, ids), atol=1e-4, rtol=1e-4)


def test_hidden_states_are_causal(head: TextGenerationHead, tokens: Tokens) -> None:
    ids = torch.randint(4, len(head.vocabulary), (B, 6))
    other = replace_column(head.vocabulary, ids, 3)
    hidden = head.hidden_states(tokens, ids)
    assert hidden.shape == (B, 6, D)
    is_changed = (hidden - head.hidden_states(tokens, other)).abs().amax((0, 2)) > 1e-5
    assert not is_changed[:3].any()
    assert is_changed[3:].any()


def test_padding_changes_no_loss_or_gradient(
    head: TextGenerationHead, tokens: Tokens, target: Tensor, single: Single
) -> None:
    matrix = tokens.matrix.masked_fill(~tokens.mask[:, None], 50.0).requires_grad_()
    loss = head.loss(tokens._replace(matrix=matrix), target)
    loss.backward()
    assert matrix.grad is not None
    is_last = tokens.mask & ~nn.functional.pad(tokens.mask[:, 1:], (0, 1))
    is_read = tokens.mask if head.attention_mode == "bidirectional" else is_last
    assert torch.equal(matrix.grad.abs().amax(1) > 0, is_read)
    lengths = (target != IGNORE_INDEX).sum(1)
    singles = [head.loss(single(tokens, b), target[b : b + 1, :n]) * n for b, n in enumerate(lengths.tolist())]
    torch.testing.assert_close(loss, torch.stack(singles).sum() / lengths.sum())


@torch.no_grad()
def test_attention_covers_real_tokens_causally(head: TextGenerationHead, tokens: Tokens, single: Single) -> None:
    if not isinstance(head, AttentiveTextHead):
        assert isinstance(head, RecurrentHead)
        return
    ids = torch.randint(4, len(head.vocabulary), (B, 5))
    weights = head.alignment(tokens, ids)
    assert weights.shape == (B, 6, tokens.mask.shape[1])
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(2), torch.ones(B, 6))
    assert not weights.masked_select(~tokens.mask[:, None]).any()
    for b, length in enumerate(tokens.mask.sum(1).tolist()):
        alone = head.alignment(single(tokens, b), ids[b : b + 1])[0]
        torch.testing.assert_close(alone, weights[b, :, :length], atol=1e-5, rtol=1e-4)
    assert (weights[:, 0] - weights[:, -1]).abs().max() > 1e-3
    changed = head.alignment(tokens, replace_column(head.vocabulary, ids, 3))
    torch.testing.assert_close(changed[:, :4], weights[:, :4])
    assert not torch.equal(changed[:, 4:], weights[:, 4:])


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_head_overfits_a_batch(name: str, vocabulary: Vocabulary, tokens: Tokens, target: Tensor) -> None:
    head = HEADS[name](vocabulary)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    head.label_smoothing = 0.0
    for _ in range(100):
        optimizer.zero_grad()
        head.loss(tokens, target).backward()
        optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())
    assert head.eval().loss(tokens, target) < 0.1
    assert head.predict(tokens) == [vocabulary.decode(ids[ids > EOS].tolist()) for ids in target]


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_bfloat16_loss_is_close(name: str, vocabulary: Vocabulary, tokens: Tokens, target: Tensor) -> None:
    head = HEADS[name](vocabulary).eval()
    expected = head.loss(tokens, target)
    with torch.autocast("cpu", torch.bfloat16):
        loss = head.loss(tokens._replace(matrix=tokens.matrix.bfloat16()), target)
        assert len(head.predict(tokens)) == B
    assert loss.item() == pytest.approx(expected.item(), rel=0.03)


@pytest.mark.parametrize(
    "head_class", [RecurrentHead, AdditiveHead, ConvDecoderHead, LuongHead, HardAttentionHead, TranslationHead]
)
def test_depth_0_is_refused(head_class: Callable[..., TextGenerationHead], vocabulary: Vocabulary) -> None:
    with pytest.raises(InputError, match="depth=0"):
        head_class(vocabulary, D, depth=0)


def test_shift_right_starts_with_begin() -> None:
    assert shift_right(torch.tensor([[7, 9, EOS], [8, EOS, -100]])).tolist() == [[BOS, 7, 9], [BOS, 8, EOS]]
    assert shift_right(torch.tensor([[8, EOS, -100, -100]])).tolist() == [[BOS, 8, EOS, PAD]]


def test_metrics_are_those_of_the_language(vocabulary: Vocabulary) -> None:
    head = TranslationHead(vocabulary, D, depth=1, language="fr")
    predictions, targets = ["l'homme court .", "un chien"], ["l'homme court", "Un chien"]
    scores = text_scores(predictions, targets, "fr")
    assert head.metrics(predictions, targets) == {name: score.score for name, score in scores.items()}
    assert head.signatures == {name: score.signature for name, score in scores.items()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding": nn.Embedding(2, D)}, r"\(2, 12\)"),
        ({"embedding": nn.Embedding(7, 5)}, r"\(7, 5\)"),
        ({"label_smoothing": 1.5}, r"label_smoothing=1\.5"),
        *(({"language": each}, f"language='{each}'") for each in ("french", "E", "DE", "", "d1")),
        ({"beam_width": 0}, "beam_width=0"),
        ({"length_penalty": -1}, "length_penalty=-1"),
        ({"r_drop": -1.0}, "r_drop=-1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(InputError, match=message):
        TranslationHead(vocabulary, D, depth=1, **options)


def test_encode_appends_end_and_needs_text(vocabulary: Vocabulary) -> None:
    head = TranslationHead(vocabulary, D, depth=1)
    assert head.encode("ein Hund").tolist() == [*vocabulary.encode("ein Hund"), EOS]
    for target in ("", " \n"):
        with pytest.raises(InputError, match=repr(target).replace("\\", r"\\")):
            head.encode(target)
    with pytest.raises(InputError, match="list"):
        head.encode(["a"])  # pyright: ignore[reportArgumentType]
