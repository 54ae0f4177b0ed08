"""The model card: a README.md that says what a model does, how to use it, and what is known about it."""

from collections.abc import Mapping
from typing import Any

from unifier.heads.head import Head
from unifier_tokenizers import Tokenizer

USE = """\
```python
import unifier as uf

print(uf.load("{folder}").predict([{example}]))
```"""


def write_card(name: str, tasks: Mapping[str, tuple[Tokenizer, Head]], facts: Mapping[str, Any]) -> str:
    """Return the text of a model card in Markdown.

    Args:
        name: The model's name.
        tasks: The tokenizer and the head of each task.
        facts: The facts in config.json, as `model_facts` returns them.
    """
    lines = ["---", "library_name: unifier", "---", "", f"# {name}", ""]
    for task, (tokenizer, head) in tasks.items():
        lines.append(f"- **{task}**: `{type(tokenizer).__name__}` to `{type(head).__name__}`")
        if labels := getattr(head, "labels", None):
            lines.append(f"  with the labels {', '.join(labels)}")
    lines += ["", "## Use", "", USE.format(folder="DIR", example="..."), ""]
    lines += ["## Scores", "", "| metric | score |", "|---|---|"]
    lines += [f"| {metric} | {score:.2f} |" for metric, score in facts["scores"].items()]
    lines += ["", "## Training", "", "| | |", "|---|---|"]
    for task, data in facts["data"].items():
        lines.append(f"| data of {task} | {data['name']}, {data['train']:,} examples, SHA-256 {data['sha256']} |")
    for key in ("seed", "parameters", "budget", "settings", "versions"):
        lines.append(f"| {key} | {_cell(facts[key])} |")
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    text = ", ".join(f"{name}={item}" for name, item in value.items()) if isinstance(value, Mapping) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
