"""The decoder is torch's, its loss teacher forcing, its searches one with both, and its scores the field's."""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.generation import beam_search, sample
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.text_generation import shift_right
from unifier.heads.text_metrics import text_scores
from unifier.heads.transformer_decoder import TranslationHead
from unifier.nn.attention import KVCache
from unifier.nn.block import Activation, Block, Norm
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, SubwordTokenizer, Tokens, Vocabulary, pad_columns
from unifier_tokenizers.text import BOS, EOS

D, HEADS, HIDDEN = 12, 3, 20
PAIRS = [
    ("two dogs run", "zwei Hunde rennen"),
    ("a girl sees two dogs run", "ein Mädchen sieht zwei Hunde rennen"),
    ("a dog", "ein Hund"),
    ("two girls see a dog", "zwei Mädchen sehen einen Hund"),
]
SOURCES, TARGETS = zip(*PAIRS, strict=True)
VOCABULARY = Vocabulary.fit([*SOURCES, *TARGETS], size=100, level="word")
NORMS: list[Norm] = ["pre", "post"]


def head_of(
    norm: Norm = "pre", smoothing: float = 0.1, depth: int = 2, activation: Activation = "gelu", width: int = 1
) -> TranslationHead:
    return TranslationHead(
        VOCABULARY, D, depth=depth, heads=HEADS, ffn_dim=HIDDEN, norm=norm, activation=activation,
        label_smoothing=smoothing, beam_width=width,
    )  # fmt: skip


def columns_of(tokenizer: SubwordTokenizer, texts: list[str] | tuple[str, ...] = SOURCES) -> Tokens:
    values, positions, mask = pad_columns([tokenizer.encode(text) for text in texts])
    return Tokens(tokenizer.embed(values, positions), mask, positions)


def targets_of(head: TranslationHead) -> Tensor:
    ids = [head.encode(text) for text in TARGETS]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=IGNORE_INDEX)


def alone(tokens: Tokens, b: int) -> Tokens:
    length = int(tokens.mask[b].sum())
    return Tokens(*(part[b : b + 1, ..., :length] for part in tokens))


def fresh() -> tuple[TranslationHead, Tokens]:
    """A head that has learned nothing, with weights loud enough for its texts to differ."""
    head = head_of()
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.5)
    return head.eval(), Tokens(*(part.detach() for part in columns_of(SubwordTokenizer(VOCABULARY, D))))


class Uncached:
    """A search's rows that read each text anew from its beginning for every token."""

    def __init__(self, head: TranslationHead, tokens: Tokens) -> None:
        self.head, self.tokens = head, tokens
        self.past = torch.empty(len(tokens.mask), 0, dtype=torch.long)

    def step(self, ids: Tensor) -> Tensor:
        self.past = torch.cat([self.past, ids[:, None]], 1)
        return self.head.next_token_log_probs()(self.head.hidden_states(self.tokens, self.past)[:, -1])

    def reorder(self, rows: Tensor) -> None:
        self.past, self.tokens = self.past[rows], Tokens(*(part[rows] for part in self.tokens))


@pytest.fixture(scope="module")
def trained() -> tuple[TranslationHead, Tokens]:
    """A head that has overfitted one batch, and the columns of that batch."""
    torch.manual_seed(0)
    head, tokenizer, trunk = head_of(smoothing=0.0), SubwordTokenizer(VOCABULARY, D), Transformer(D, 1, HEADS, HIDDEN)
    parts = nn.ModuleList([head, tokenizer, trunk])
    optimizer, target = torch.optim.Adam(parts.parameters(), lr=0.02), targets_of(head)
    for _ in range(80):
        optimizer.zero_grad()
        head.loss(trunk(columns_of(tokenizer)), target).backward()
        optimizer.step()
    with torch.no_grad():
        return head.eval(), trunk(columns_of(tokenizer))


def test_the_head_overfits_a_batch_and_writes_it(trained: tuple[TranslationHead, Tokens]) -> None:
    head, tokens = trained
    assert head.loss(tokens, targets_of(head)) < 0.05
    assert head.predict(tokens) == list(TARGETS)
    assert list(head.metrics(head.predict(tokens), TARGETS).values()) == pytest.approx([100, 100, 100])
    assert [found[0].ids for found in head.search(tokens, 4)] == [VOCABULARY.encode(text) for text in TARGETS]
    assert head.predict(Tokens(*(part.flip(0) for part in tokens))) == list(TARGETS)[::-1]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_teacher_forcing_step_by_step(norm: Norm, smoothing: float) -> None:
    """Each next token from the true ones before it and the columns of its own example, none of it padded."""
    head, tokens = head_of(norm, smoothing), columns_of(SubwordTokenizer(VOCABULARY, D))
    losses: list[Tensor] = []
    for b, text in enumerate(TARGETS):
        ids = [BOS, *VOCABULARY.encode(text), EOS]
        for length in range(1, len(ids)):
            logs = head.logits(alone(tokens, b), torch.tensor([ids[:length]]))[0, -1].log_softmax(-1)
            losses.append(-(1 - smoothing) * logs[ids[length]] - smoothing * logs.mean())
    torch.testing.assert_close(head.loss(tokens, targets_of(head)), torch.stack(losses).mean())


def test_an_examples_loss_and_text_are_the_same_alone_and_beside_longer_ones(
    trained: tuple[TranslationHead, Tokens],
) -> None:
    for head, tokens in (trained, fresh()):
        target = targets_of(head)
        total = torch.zeros(())
        for b, text in enumerate(TARGETS):
            ids = head.encode(text)
            total += head.loss(alone(tokens, b), ids[None]) * len(ids)
            assert head.predict(alone(tokens, b)) == head.predict(tokens)[b : b + 1]
        torch.testing.assert_close(head.loss(tokens, target), total / (target != IGNORE_INDEX).sum())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_blocks_are_torchs_decoder_with_the_same_weights(norm: Norm, activation: Activation) -> None:
    head, tokens = head_of(norm, activation=activation), columns_of(SubwordTokenizer(VOCABULARY, D))
    for parameter in head.blocks.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, memory = torch.randn(len(PAIRS), 5, D), tokens.matrix.mT
    past = torch.ones(5, 5, dtype=torch.bool).tril()
    for block in head.blocks:
        assert isinstance(block, Block)
        assert block.cross is not None
        assert block.cross_norm is not None
        peer = nn.TransformerDecoderLayer(D, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm == "pre")
        for own, theirs in ((block.attention, peer.self_attn), (block.cross, peer.multihead_attn)):
            theirs.load_state_dict(
                {
                    "in_proj_weight": torch.cat([own.query.weight, own.key_value.weight]),
                    "in_proj_bias": torch.cat([own.query.bias, own.key_value.bias]),
                    "out_proj.weight": own.out.weight,
                    "out_proj.bias": own.out.bias,
                }
            )
        norms = (block.attention_norm, block.cross_norm, block.feed_forward_norm)
        for own, theirs in zip(norms, (peer.norm1, peer.norm2, peer.norm3), strict=True):
            theirs.load_state_dict(own.state_dict())
        peer.linear1.load_state_dict(block.feed_forward[0].state_dict())
        peer.linear2.load_state_dict(block.feed_forward[3].state_dict())
        expected = peer(x, memory, tgt_mask=~past, memory_key_padding_mask=~tokens.mask)
        x = block(x, past, memory=memory, memory_mask=tokens.mask[:, None, None])
        torch.testing.assert_close(x, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 4, 5, 6], [0, 6], [0, 1, 4, 6], [0, 3, 6]], ids=str)
def test_a_cached_decode_is_an_uncached_one_however_it_is_cut(cuts: list[int]) -> None:
    head, tokens = fresh()
    ids = torch.randint(4, len(VOCABULARY), (len(PAIRS), 6))
    caches = [(KVCache(grows=True), KVCache(grows=False)) for _ in head.blocks]
    parts = [head.hidden_states(tokens, ids[:, start:end], caches, start) for start, end in pairwise(cuts)]
    torch.testing.assert_close(torch.cat(parts, 1), head.hidden_states(tokens, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("width", [1, 3])
def test_a_cached_search_is_an_uncached_one(width: int) -> None:
    head, tokens = fresh()
    found = beam_search(Uncached(head, tokens), head.max_lengths(tokens), width)
    for one, cached in zip(found, head.search(tokens, width), strict=True):
        assert [text.ids for text in one] == [text.ids for text in cached]
        assert [text.score for text in one] == pytest.approx([text.score for text in cached], abs=1e-4)


def test_what_is_sampled_is_each_examples_own_and_scored_as_teacher_forcing_does() -> None:
    head, tokens = fresh()

    def draws() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(b) for b in range(len(PAIRS))]

    found = head.sample(tokens, draws(), temperature=0.8, top_k=10, top_p=0.9)
    assert found == head.sample(tokens, draws(), temperature=0.8, top_k=10, top_p=0.9)
    uncached = sample(Uncached(head, tokens), head.max_lengths(tokens), draws(), temperature=0.8, top_k=10, top_p=0.9)
    assert [text.ids for text in found] == [text.ids for text in uncached]
    for b, (ids, score) in enumerate(found):
        (one,) = head.sample(alone(tokens, b), draws()[b : b + 1], temperature=0.8, top_k=10, top_p=0.9)
        assert one.ids == ids
        limit = int(head.max_lengths(tokens)[b])
        written = torch.tensor([BOS, *ids, *([] if len(ids) == limit else [EOS])])
        logs = head.logits(alone(tokens, b), written[None, :-1])[0].log_softmax(-1)
        assert score == pytest.approx(logs.gather(1, written[1:, None]).mean().item(), abs=1e-3)
    likeliest = head.sample(tokens, draws(), top_k=1)
    assert [text.ids for text in likeliest] == [texts[0].ids for texts in head.search(tokens, 1)]


def test_neighbors_share_a_memory_as_if_each_had_its_own() -> None:
    head, tokens = fresh()
    ids = torch.randint(4, len(VOCABULARY), (3 * len(PAIRS), 6))
    each = Tokens(*(part.repeat_interleave(3, 0) for part in tokens))
    torch.testing.assert_close(head.logits(tokens, ids), head.logits(each, ids), atol=1e-5, rtol=1e-4)


def test_a_later_token_changes_no_earlier_answer() -> None:
    head, tokens = fresh()
    ids = torch.randint(4, len(VOCABULARY), (len(PAIRS), 6))
    other = ids.clone()
    other[:, 3] = (ids[:, 3] - 3) % (len(VOCABULARY) - 4) + 4
    changed = (head.logits(tokens, ids) - head.logits(tokens, other)).abs().amax((0, 2)) > 1e-5
    assert changed.tolist() == [False, False, False, True, True, True]


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_searches_score_as_teacher_forcing_does_and_keep_to_their_limits(
    trained: tuple[TranslationHead, Tokens], width: int, penalty: float
) -> None:
    for head, tokens in (trained, fresh()):
        head.length_penalty = penalty
        for b, found in enumerate(head.search(tokens, width)):
            limit = 2 * int(tokens.mask[b].sum()) + 16
            assert 1 <= len(found) <= width
            for ids, score in found:
                assert len(ids) <= limit
                written = torch.tensor([BOS, *ids, *([] if len(ids) == limit else [EOS])])
                logs = head.logits(alone(tokens, b), written[None, :-1])[0].log_softmax(-1)
                expected = logs.gather(1, written[1:, None]).sum() / (len(written) - 1) ** penalty
                assert score == pytest.approx(expected.item(), abs=1e-3)
        head.length_penalty = 1.0


@pytest.mark.parametrize("width", [1, 3])
def test_a_batch_is_searched_as_each_example_alone(width: int) -> None:
    head, tokens = fresh()
    together = head.search(tokens, width)
    assert len({tuple(found[0].ids) for found in together}) > 1, "the columns are not read"
    for b in range(len(PAIRS)):
        (found,) = head.search(alone(tokens, b), width)
        assert [each.ids for each in found] == [each.ids for each in together[b]]
        assert [each.score for each in found] == pytest.approx([each.score for each in together[b]], abs=1e-4)


def test_recorded_attention_is_over_the_real_columns() -> None:
    head, tokens = fresh()
    ids, weights = torch.randint(4, len(VOCABULARY), (len(PAIRS), 5)), list[Tensor]()
    torch.testing.assert_close(head.hidden_states(tokens, ids, weights=weights), head.hidden_states(tokens, ids))
    assert [each.shape for each in weights] == [(len(PAIRS), HEADS, 5, tokens.mask.shape[1])] * 2
    for each in weights:
        torch.testing.assert_close(each.sum(-1), torch.ones(len(PAIRS), HEADS, 5))
        assert torch.equal(each.amax((1, 2)) > 0, tokens.mask)


def test_metrics_are_those_of_texts_in_the_heads_language() -> None:
    head = TranslationHead(VOCABULARY, D, depth=1, heads=HEADS, ffn_dim=HIDDEN, language="fr")
    written, targets = ["l'homme court .", "un chien"], ["l'homme court", "Un chien"]
    found = text_scores(written, targets, "fr")
    assert head.metrics(written, targets) == {name: one.score for name, one in found.items()}
    assert head.signatures == {name: one.signature for name, one in found.items()}
    with pytest.raises(InputError, match="language='french'"):
        TranslationHead(VOCABULARY, D, depth=1, heads=HEADS, ffn_dim=HIDDEN, language="french")


def test_a_shared_embedding_is_one_parameter_in_three_places() -> None:
    tokenizer = SubwordTokenizer(VOCABULARY, D)
    head = TranslationHead(VOCABULARY, D, depth=1, heads=HEADS, ffn_dim=HIDDEN, embedding=tokenizer.embedding)
    road = deepcopy(nn.ModuleDict({"tokenizer": tokenizer, "head": head}))
    tokenizer, head = road["tokenizer"], road["head"]
    assert isinstance(tokenizer, SubwordTokenizer)
    assert isinstance(head, TranslationHead)
    assert head.embedding.weight is tokenizer.embedding.weight
    large = [parameter for parameter in road.parameters() if parameter.shape == (len(VOCABULARY), D)]
    assert len(large) == 1
    ids, text = torch.tensor([[BOS, 5]]), VOCABULARY.decode([5])
    memory = Tokens(*(part.detach() for part in columns_of(tokenizer, ["two dogs"])))
    read, written = columns_of(tokenizer, [text]).matrix, head.logits(memory, ids)
    with torch.no_grad():
        large[0][5] += torch.randn(D)
    assert (columns_of(tokenizer, [text]).matrix - read).abs().amax((0, 1))[0] > 1e-3, "the tokenizer reads it"
    changed = (head.logits(memory, ids) - written)[0].abs() > 1e-5
    assert changed[1].all(), "the text so far reads it"
    assert changed[0].nonzero().tolist() == [[5]], "the projection writes it"


def test_an_output_of_its_own_is_one_more_table() -> None:
    tied, own = head_of(), TranslationHead(VOCABULARY, D, depth=2, heads=HEADS, ffn_dim=HIDDEN, tied=False)
    counts = [sum(parameter.numel() for parameter in head.parameters()) for head in (tied, own)]
    assert counts[1] - counts[0] == len(VOCABULARY) * D
    own.load_state_dict({**tied.state_dict(), "output.weight": tied.embedding.weight.flip(0)})
    tokens = columns_of(SubwordTokenizer(VOCABULARY, D))
    ids = torch.tensor([[BOS]] * len(PAIRS))
    torch.testing.assert_close(own.logits(tokens, ids), tied.logits(tokens, ids).flip(-1))
    target = targets_of(own)
    logs = own.logits(tokens, shift_right(target))[target != IGNORE_INDEX].log_softmax(-1)
    expected = functional.cross_entropy(logs, target[target != IGNORE_INDEX], label_smoothing=0.1)
    torch.testing.assert_close(own.loss(tokens, target), expected)


def test_r_drop_is_the_loss_of_both_readings_and_how_far_they_differ() -> None:
    head = TranslationHead(VOCABULARY, D, depth=1, heads=HEADS, ffn_dim=HIDDEN, r_drop=3.0)
    plain = TranslationHead(VOCABULARY, D, depth=1, heads=HEADS, ffn_dim=HIDDEN)
    plain.load_state_dict(head.state_dict())
    first, second = columns_of(SubwordTokenizer(VOCABULARY, D)), columns_of(SubwordTokenizer(VOCABULARY, D))
    both, target = Tokens(*(torch.cat(parts) for parts in zip(first, second, strict=True))), targets_of(head)
    logs = [plain.logits(read, shift_right(target))[target != IGNORE_INDEX].log_softmax(-1) for read in (first, second)]
    apart = [functional.kl_div(one, other, reduction="batchmean", log_target=True) for one, other in (logs, logs[::-1])]
    losses = [plain.loss(read, target) for read in (first, second)]
    expected = sum(losses) / 2 + 3.0 / 2 * sum(apart) / 2
    torch.testing.assert_close(head.loss(both, torch.cat([target, target])), expected)
    torch.testing.assert_close(head.eval().loss(first, target), losses[0])
    assert head.num_passes == 2
    assert plain.num_passes == 1


def test_what_cannot_be_shared_or_encoded() -> None:
    size = len(VOCABULARY)
    for shape in ((size + 1, D), (size, D + 1)):
        with pytest.raises(InputError) as error:
            TranslationHead(VOCABULARY, D, depth=1, heads=3, ffn_dim=4, embedding=nn.Embedding(*shape))
        assert str(error.value) == f"the shared embedding is {shape}, and the head needs {(size, D)}"
    for empty in ("", " \n"):
        with pytest.raises(InputError, match="an empty text has no translation to learn from"):
            head_of().encode(empty)
    with pytest.raises(InputError, match=r"label_smoothing=1\.5"):
        head_of(smoothing=1.5)
    with pytest.raises(InputError, match="a text is expected, not list"):
        head_of().encode(["a"])  # pyright: ignore[reportArgumentType]
    assert head_of().encode("two dogs").tolist() == [*VOCABULARY.encode("two dogs"), EOS]


def test_untrained_it_is_no_better_than_chance() -> None:
    """The starting loss is near that of a uniform guess: logits are neither loud nor biased."""
    head, tokens = head_of(smoothing=0.0), columns_of(SubwordTokenizer(VOCABULARY, D))
    uniform = functional.cross_entropy(torch.zeros(1, len(VOCABULARY)), torch.zeros(1).long())
    assert abs(head.loss(tokens, targets_of(head)) - uniform) < 1
