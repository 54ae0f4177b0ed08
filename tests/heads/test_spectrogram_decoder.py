"""The head that writes spectrograms: the contract, one batch by heart, the KV cache, and the distortion of cepstra."""

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.heads.conftest import D, randomize
from unifier.data.dataloader import Batch
from unifier.data.inputs import TextReader
from unifier.heads.cepstral_distortion import cepstral_distortion, mel_cepstra
from unifier.heads.conformance import check_head
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead, Speech, guide, spectrogram_moments
from unifier.models.folder import ModelTask, StoredModel, read_model, write_model
from unifier.network import Network
from unifier.nn.attention import KVCache
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import Audio, InputError, SubwordTokenizer, Tokens, Vocabulary, pad_columns
from unifier_tokenizers.log_mel import LogMel

LOG_MEL = LogMel(sample_rate=2000, n_mels=8)
PITCHES = {"a": 200, "b": 600}


def speak(text: str) -> Audio:
    """Return a tone of 0.15 s for each letter."""
    seconds = np.arange(300) / 2000
    return Audio(np.concatenate([np.sin(2 * np.pi * PITCHES[c] * seconds) for c in text]).astype(np.float32), 2000)


def make_head(dim: int = D, **options: Any) -> SpectrogramDecoderHead:
    mean, std = spectrogram_moments([LOG_MEL.spectrogram(speak(text)) for text in ("ab", "ba")])
    given: dict[str, Any] = {"max_seconds": 1.5, "reduction": 3, "depth": 1, "heads": 2, "dropout": 0.0} | options
    return SpectrogramDecoderHead(dim, log_mel=LOG_MEL, mean=mean, std=std, **given)


def pad(targets: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([t.mT for t in targets], batch_first=True, padding_value=IGNORE_INDEX).mT


@pytest.mark.slow
def test_head_keeps_contract() -> None:
    check_head(make_head(max_seconds=0.3), [speak("ab"), speak("a")], D)


@torch.no_grad()
def test_sound_is_equal_alone_and_in_a_batch(tokens: Tokens, single: Callable[[Tokens, int], Tokens]) -> None:
    head = randomize(make_head())
    head.end.bias.fill_(-2)
    together = head.predict(tokens)
    assert len({speech.spectrogram.shape[1] for speech in together}) > 1
    for b, speech in enumerate(together):
        (alone,) = head.predict(single(tokens, b))
        torch.testing.assert_close(alone.spectrogram, speech.spectrogram, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(alone.attention, speech.attention, rtol=1e-4, atol=1e-5)
        assert alone.ended == speech.ended
        torch.testing.assert_close(speech.attention.sum(1), torch.ones(len(speech.attention)))


@torch.no_grad()
def test_loss_is_the_mean_over_examples(tokens: Tokens, single: Callable[[Tokens, int], Tokens]) -> None:
    head = randomize(make_head(), std=0.2)
    targets = [head.encode(speak(text)) for text in ("aba", "a", "bb")]
    alone = [head.loss(single(tokens, b), target[None]) for b, target in enumerate(targets)]
    torch.testing.assert_close(head.loss(tokens, pad(targets)), torch.stack(alone).mean())


@torch.no_grad()
def test_cached_steps_equal_one_pass(tokens: Tokens) -> None:
    head = randomize(make_head(depth=2, steps_per_token=2.5))
    frames = torch.randn(3, 7, LOG_MEL.n_mels)
    caches = [(KVCache(grows=True), KVCache(grows=False)) for _ in head.blocks]
    steps = [head.hidden_states(tokens, frames[:, k : k + 1], caches, k) for k in range(7)]
    torch.testing.assert_close(torch.cat(steps, 1), head.hidden_states(tokens, frames), rtol=1e-4, atol=1e-5)


def test_frames_of_training_are_dropped_and_sounds_are_sharpened(tokens: Tokens) -> None:
    head = make_head(frame_dropout=0.9, prenet_dropout=0.0, sharpening=2.0)
    seen = list[torch.Tensor]()
    head.prenet.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    target = torch.stack([head.encode(speak("ab"))] * 3)
    for mode in (True, False):
        head.train(mode).loss(tokens, target)
    trained, evaluated = seen
    dropped = (trained == 0).all(2)
    assert dropped[:, 1:].float().mean() > 0.6
    torch.testing.assert_close(trained[~dropped], evaluated[~dropped])
    mean = head.mean[:, None]
    found = head.to_sound(Speech(mean + 0.5, torch.ones(1, 1), True)).waveform
    assert torch.equal(torch.as_tensor(found), torch.as_tensor(LOG_MEL.sound(mean + 1).waveform))


def test_guide_is_small_on_the_diagonal_of_each_example() -> None:
    tokens, steps = (
        torch.arange(size) < torch.tensor(lengths)[:, None] for size, lengths in ((6, (6, 3)), (8, (8, 4)))
    )
    found = guide(tokens, steps)
    for b, (n, t) in enumerate(((6, 8), (3, 4))):
        for row, column in product(range(t), range(n)):
            distance = (column + 0.5) / n - (row + 0.5) / t
            assert found[b, row, column].item() == pytest.approx(1 - math.exp(-(distance**2) / 0.08), abs=1e-5)


@pytest.mark.slow
def test_head_learns_two_sounds_by_heart_and_a_folder_keeps_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    texts = ["abb", "ba"]
    tokenizer = SubwordTokenizer(Vocabulary.fit(texts, level="character", size=300), 32)
    head = make_head(32, prenet_dropout=0.2)
    task = ModelTask(tokenizer, head, TextReader(), 5)
    network = Network(Transformer(32, 1, 2, 32), {"speech": task})
    parts = pad_columns([tokenizer.encode(text) for text in texts])
    sounds = [speak(text) for text in texts]
    batch = Batch(*parts, pad([head.encode(sound) for sound in sounds]))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        network.loss("speech", batch).backward()
        optimizer.step()
    found: list[Speech] = network.predict("speech", texts)
    scores = head.metrics(found, sounds)
    assert scores["mcd"] < 0.3 * head.metrics(found[::-1], sounds)["mcd"]
    assert scores["unfinished"] == 0
    assert scores["seconds_error"] < 0.05
    write_model(tmp_path / "m", StoredModel("s", network.trunk, {"speech": task}, 64, {}), "")
    stored = read_model(tmp_path / "m")
    (again, _) = Network(stored.trunk, stored.tasks).predict("speech", texts)
    assert torch.equal(again.spectrogram, found[0].spectrogram)
    wave = np.asarray(head.to_sound(found[0]).waveform)
    for letter, start in (("a", 30), ("b", 400)):
        peak = np.abs(np.fft.rfft(wave[start : start + 200])).argmax() * 2000 / 200
        assert abs(peak - PITCHES[letter]) < 150


def test_distortion_is_the_cheapest_path_of_cepstra() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 20, 4))
    second = second[:, :3]
    angles = np.pi * np.arange(1, 14)[:, None] * (np.arange(20) + 0.5) / 20
    cepstra = [(np.cos(angles) @ part / 20).T for part in (first, second)]
    np.testing.assert_allclose(mel_cepstra(first), cepstra[0])
    costs = 10 / math.log(10) * np.sqrt(2 * ((cepstra[0][:, None] - cepstra[1]) ** 2).sum(2))

    def paths(i: int, j: int) -> list[list[float]]:
        if (i, j) == (0, 0):
            return [[costs[0, 0]]]
        before = [(i - 1, j - 1), (i - 1, j), (i, j - 1)]
        return [[*path, costs[i, j]] for a, b in before if min(a, b) >= 0 for path in paths(a, b)]

    best = min(paths(3, 2), key=sum)
    assert cepstral_distortion(first, second) == pytest.approx(sum(best) / len(best))
    assert cepstral_distortion(first, np.repeat(first, 2, axis=1)) == pytest.approx(0, abs=1e-5)


def test_bad_arguments_and_targets_are_refused() -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"reduction": 0}, "reduction=0"),
        ({"max_seconds": 0.0}, r"max_seconds=0\.0"),
        ({"guided_attention": -1.0}, "guided_attention"),
        ({"steps_per_token": 0.0}, "steps_per_token"),
        ({"prenet_dropout": 1.0}, "prenet_dropout"),
        ({"frame_dropout": -0.1}, "frame_dropout"),
        ({"sharpening": 0.0}, "sharpening"),
        ({"depth": 0}, "depth=0"),
    ]
    for options, named in bad:
        with pytest.raises(InputError, match=named):
            make_head(**options)
    with pytest.raises(InputError, match="8 of each"):
        SpectrogramDecoderHead(D, log_mel=LOG_MEL, mean=[0.0], std=[1.0], max_seconds=1)
    with pytest.raises(InputError, match="Audio"):
        make_head().encode("a text")
    with pytest.raises(InputError, match="n_mels=0"):
        LogMel(n_mels=0)
