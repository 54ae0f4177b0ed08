"""Encoders of transformers as trunks and as tokenizers of text. The models have random weights."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tokenizers as hf
import unifier as uf
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from unifier.config import load_experiment
from unifier.datasets import GrammarPairs
from unifier.trunks.factory import create_trunk
from unifier.trunks.huggingface import load_hf_tokenizer, load_hf_trunk
from unifier_tokenizers import InputError, Tokens, check_tokenizer, pad_columns

pytestmark = pytest.mark.extras

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TEXTS = [example.input for example in GrammarPairs().split("train")][:200]
ODD = ["Ünïcödé, 日本語!", "a [SEP] b </s> c", "  two   spaces", "x" * 30, "emoji 👍🏽"]
FILTERS = {"conv_dim": (8,), "conv_stride": (5,), "conv_kernel": (10,)}
SOUND = FILTERS | {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}


def build(kind: str, **options: Any) -> Any:
    """Create a model of transformers with random weights, norms and biases included."""
    transformers = import_module("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **options)
    model = getattr(transformers, f"{kind}Model")(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=float("norm" in name.lower() and "weight" in name), std=0.3)
        elif "encoder" in name or "layers" in name:
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Tensor]]] = {
    "bert": (lambda: build("Bert", vocab_size=50), lambda: torch.randint(5, 50, (2, 7))),
    "roberta": (lambda: build("Roberta", vocab_size=50), lambda: torch.randint(5, 50, (2, 7))),
    "vit": (lambda: build("ViT", image_size=8, patch_size=4, qkv_bias=False), lambda: torch.randn(2, 3, 8, 8)),
    "deit": (lambda: build("DeiT", image_size=8, patch_size=4), lambda: torch.randn(2, 3, 8, 8)),
    "distilbert": (lambda: build("DistilBert", vocab_size=50, hidden_dim=24), lambda: torch.randint(5, 50, (2, 7))),
    "ast": (lambda: build("AST", max_length=40, num_mel_bins=20), lambda: torch.randn(2, 40, 20)),
    "wav2vec2": (lambda: build("Wav2Vec2", **SOUND), lambda: torch.randn(2, 100)),
    "wav2vec2, norm first": (
        lambda: build("Wav2Vec2", **SOUND, do_stable_layer_norm=True, layer_norm_eps=1e-3),
        lambda: torch.randn(2, 100),
    ),
    "relu": (lambda: build("Bert", vocab_size=50, hidden_act="relu"), lambda: torch.randint(5, 50, (2, 7))),
}


@pytest.mark.parametrize("name", MODELS)
def test_trunk_gives_the_models_output(name: str, tmp_path: Path) -> None:
    make, draw = MODELS[name]
    model, entered = make(), list[Tensor]()
    model.save_pretrained(tmp_path)
    layers = next(part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == 2)
    layers[0].register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    with torch.no_grad():
        expected = model(draw()).last_hidden_state
        trunk = create_trunk(f"hf:{tmp_path}", 16, 1)
        x = entered[0]
        tokens = Tokens(x.mT, torch.ones(x.shape[:2], dtype=torch.bool), torch.arange(x.shape[1]).expand(2, 1, -1))
        torch.testing.assert_close(trunk.eval()(tokens).matrix.mT, expected, atol=1e-5, rtol=1e-5)
    assert trunk.pretrained
    with pytest.raises(InputError, match=r"dim=32.*dim=16"):
        create_trunk(f"hf:{tmp_path}", 32, 1)


def codec_of(kind: str) -> hf.Tokenizer:
    """Train a vocabulary in the manner of a kind of model."""
    if kind in ("Bert", "DistilBert"):
        codec, special = hf.Tokenizer(models.WordPiece(unk_token="[UNK]")), ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        codec.normalizer, codec.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        codec.decoder = decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    else:
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        if kind == "Roberta":
            codec = hf.Tokenizer(models.BPE())
            codec.pre_tokenizer, codec.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
            alphabet = pre_tokenizers.ByteLevel.alphabet()
            trainer = trainers.BpeTrainer(
                vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
            )
        else:
            codec = hf.Tokenizer(models.Unigram())
            codec.pre_tokenizer, codec.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
            trainer = trainers.UnigramTrainer(
                vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False
            )
    codec.train_from_iterator(TEXTS, trainer)
    first, last = ("[CLS]", "[SEP]") if kind in ("Bert", "DistilBert") else ("<s>", "</s>")
    ends = [(name, codec.token_to_id(name)) for name in (first, last)]
    codec.post_processor = processors.TemplateProcessing(single=f"{first} $A {last}", special_tokens=ends)
    return codec


def save_text_model(kind: str, folder: Path, **options: Any) -> Any:
    codec, transformers = codec_of(kind), import_module("transformers")
    pad = "[PAD]" if kind in ("Bert", "DistilBert") else "<pad>"
    model = build(
        kind,
        vocab_size=codec.get_vocab_size() + 3,
        max_position_embeddings=64,
        pad_token_id=codec.token_to_id(pad),
        **options,
    )
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=codec, pad_token=pad).save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["Bert", "DistilBert", "Roberta", "XLMRoberta"])
def test_text_gives_the_models_ids_and_output(kind: str, tmp_path: Path) -> None:
    model = save_text_model(kind, tmp_path)
    codec = import_module("transformers").AutoTokenizer.from_pretrained(tmp_path)
    tokenizer, trunk = load_hf_tokenizer(str(tmp_path)).eval(), load_hf_trunk(str(tmp_path)).eval()
    texts = [*TEXTS, *ODD]
    encoded = [tokenizer.encode(text) for text in texts]
    expected = codec(texts, split_special_tokens=True)["input_ids"]
    assert [units.values.tolist() for units in encoded] == expected
    batch = [encoded[0], encoded[-2]]
    values, positions, mask = pad_columns(batch)
    padded = codec([texts[0], texts[-2]], padding=True, return_tensors="pt")
    with torch.no_grad():
        tokens = trunk(Tokens(tokenizer.embed(values, positions), mask, positions))
        output = model(padded["input_ids"], attention_mask=padded["attention_mask"]).last_hidden_state
    torch.testing.assert_close(tokens.matrix.mT[mask], output[mask], atol=1e-5, rtol=1e-5)
    check_tokenizer(load_hf_tokenizer(str(tmp_path), dropout=0.1), texts[:5])
    indices = tokenizer.position_values(tokenizer.encode("the dog"))[0].tolist()
    assert indices == sorted(indices)
    assert indices[-1] == 3
    with pytest.raises(InputError, match="at most 6"):
        tokenizer.encode("word " * 99)


@pytest.mark.parametrize(
    ("kind", "options", "part"),
    [
        ("T5Encoder", {"d_kv": 4}, "relative positions"),
        ("ModernBert", {"pad_token_id": 0}, "a gated feed-forward network"),
        ("Bert", {"hidden_act": "gelu_new"}, "the activation gelu_new"),
        ("Bert", {"is_decoder": True}, "a decoder"),
        ("Dinov2", {}, "scaled residual branches"),
        ("Wav2Vec2", {**SOUND, "do_stable_layer_norm": True, "adapter_attn_dim": 4}, "adapters"),
        ("Electra", {}, "layers of the kind electra"),
    ],
)
def test_model_with_another_part_is_refused(kind: str, options: dict[str, Any], part: str, tmp_path: Path) -> None:
    transformers = import_module("transformers")
    config = getattr(transformers, f"{kind.removesuffix('Encoder')}Config")(**SIZES, **options)
    config.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"^[^\n]*{part}[^\n]*$"):
        load_hf_trunk(str(tmp_path))


def test_damaged_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("Bert", vocab_size=50)
    model.save_pretrained(tmp_path)
    build("ViT", image_size=8, patch_size=4).save_pretrained(tmp_path / "vit")
    with pytest.raises(InputError, match=r"tokenizer=hf:.*vit"):
        load_hf_tokenizer(str(tmp_path / "vit"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(InputError, match=r"weights of encoder\.layer\.2"):
        load_hf_trunk(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.5}))
    monkeypatch.setattr(
        "unifier.trunks.huggingface.Transformer", lambda *sizes, norm_eps, **more: uf.Transformer(*sizes, **more)
    )
    with pytest.raises(InputError, match="output differs"):
        load_hf_trunk(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(InputError, match=r"^[^\n]*cannot be loaded[^\n]*$"):
            load_hf_trunk(str(folder))


def test_filled_cache_is_enough_without_a_network(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--some--model"
    save_text_model("Bert", repository / "snapshots" / "c0ffee")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    calls = "load_hf_tokenizer('some/model'); print(load_hf_trunk('some/model').dim)"
    code = f"from unifier.trunks.huggingface import load_hf_tokenizer, load_hf_trunk; {calls}"
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "16"
    assert not done.stderr


def test_decoder_writes_from_a_pretrained_encoder(tmp_path: Path) -> None:
    save_text_model("Bert", tmp_path / "bert")
    (tmp_path / "pairs.tsv").write_text("".join(f"the dog sees {k} cats.\tcats {k}\n" for k in range(40)))
    name = f"hf:{tmp_path / 'bert'}"
    settings: dict[str, Any] = {"data": str(tmp_path / "pairs.tsv"), "how": "title", "tokenizer": name, "trunk": name}
    small: dict[str, Any] = {"dim": 16, "decoder_depth": 1, "vocabulary": 300, "steps": 1, "num_validations": 1}
    (result,) = uf.run(load_experiment("summarization"), out=tmp_path / "runs", track="off", **settings, **small)
    assert "test/pairs/rouge1" in result.metrics


def test_fine_tuned_model_loads_from_its_folder(tmp_path: Path) -> None:
    save_text_model("Bert", tmp_path / "bert", hidden_dropout_prob=0.0)
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"the dog sees {k} cats,{k % 2}\n" for k in range(40)))
    name = f"hf:{tmp_path / 'bert'}"
    settings: dict[str, Any] = {"data": str(table), "tokenizer": name, "trunk": name, "dim": 16, "pooling": "cls"}
    more: dict[str, Any] = settings | {"steps": 2}
    (result,) = uf.run(load_experiment("text_classification"), out=tmp_path / "runs", track="off", **more)
    expected = uf.load(result.folder).predict(TEXTS[:3])
    (tmp_path / "bert").rename(tmp_path / "gone")
    moved = (result.folder / "model").rename(tmp_path / "moved")
    assert uf.load(moved).predict(TEXTS[:3]) == expected
    wrong: dict[str, Any] = settings | {"tokenizer": f"hf:{tmp_path / 'gone'}", "dim": 8}
    with pytest.raises(InputError, match="dim=16"):
        uf.run(load_experiment("text_classification"), track="off", **wrong)
