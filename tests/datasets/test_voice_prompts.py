"""Voice prompts: the splits, the texts, and tables that name a sound or a character that does not exist."""

from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import pytest

from unifier.data.source import SPLITS
from unifier.datasets.voice_prompts import PromptLanguage, VoicePrompts, spoken_text
from unifier_tokenizers import InputError

Write = Callable[..., Path]

TEXTS = {
    "en": ("Press 1, please.", "You're on", "ok", "pound"),
    "fr": ("Ça, c'est réussi !", "appuyez", "à 2", "dièse"),
}


@pytest.fixture
def write(write_tone: Write) -> Callable[[Path], VoicePrompts]:
    def write_files(folder: Path) -> VoicePrompts:
        rows = ["file,language,split,text"]
        for number, (language, texts) in enumerate(TEXTS.items()):
            folder.mkdir(parents=True, exist_ok=True)
            with ZipFile(folder / f"{language}.zip", "w") as archive:
                for k, (text, split) in enumerate(zip(texts, ("train", *SPLITS), strict=True)):
                    sound = write_tone(folder / "sounds" / f"{k}.wav", (k + number) / 10)
                    archive.writestr(ZipInfo(sound.name), sound.read_bytes())  # ZipInfo has a fixed date.
                    rows.append(f'{language}/{sound.name},{language},{split},"{text}"')
        (folder / "prompts.csv").write_text("\n".join(rows), encoding="utf-8")
        return VoicePrompts(data=folder)

    return write_files


@pytest.mark.parametrize("language", ["en", "fr"])
def test_prompts_have_spoken_texts(
    write: Callable[[Path], VoicePrompts], tmp_path: Path, language: PromptLanguage
) -> None:
    write(tmp_path)
    source = VoicePrompts(language, data=tmp_path)
    examples = [example for name in SPLITS for example in source.split(name)]
    assert [example.target for example in examples] == [spoken_text(text) for text in TEXTS[language]]
    assert {*"".join(example.target for example in examples)} <= {*source.labels}
    assert {(example.input.waveform.shape, example.input.sample_rate) for example in examples} == {((80,), 16000)}
    assert [len(source.split(name)) for name in SPLITS] == [2, 1, 1]
    assert source.sha256 != VoicePrompts("fr" if language == "en" else "en", data=tmp_path).sha256


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Press 1, please.", "press 1 please"),
        ("  You\u2019re -- on;", "you're on"),
        ("À l'appel…", "à l'appel"),
        ("?", ""),
    ],
)
def test_spoken_text_keeps_letters(text: str, spoken: str) -> None:
    assert spoken_text(text) == spoken


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("en/0.wav,en,train,...", "line 2: no letter in the text '...'"),
        ("en/0.wav,en,train,café", "line 2: the character 'é'"),
        ("en/0.wav,en,dev,on", "line 2.*'dev'"),
        ("en/9.wav,en,train,on", "9.wav"),
    ],
)
def test_wrong_tables_are_refused(
    write: Callable[[Path], VoicePrompts], tmp_path: Path, cells: str, message: str
) -> None:
    source = write(tmp_path)
    (tmp_path / "prompts.csv").write_text(f"file,language,split,text\n{cells}\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        source.split("train")[0]
    with pytest.raises(InputError, match="'de'"):
        VoicePrompts("de", data=tmp_path)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="voice_prompts"):
        VoicePrompts(data=tmp_path / "empty").split("train")
