"""The content of requests and answers, in JSON."""

from typing import Any, final

from pydantic import BaseModel, Field

from unifier.inference.explain import ExplainedText, InputAttention
from unifier.report.head_lines import LayerLines


@final
class PredictRequest(BaseModel, extra="forbid"):
    """A request for predictions. Exactly one of `text`, `file` and `inputs` must be given."""

    text: str | None = Field(default=None, description="A text, for a task that reads texts.")
    file: str | None = Field(default=None, description="The bytes of a picture or sound file in base64.")
    inputs: list[str | dict[str, str]] | None = Field(
        default=None,
        min_length=1,
        description="Several inputs. An input is a text, a file in base64, or an object with one of them per member "
        "of a mixture.",
    )
    task: str | None = Field(default=None, description="The task of a model with several tasks.")
    top_k: int | None = Field(default=None, ge=1, description="The number of labels per input, by default all.")
    explain: bool = Field(
        default=False,
        description="Also return attention, and the best texts with their steps, for one input.",
    )


@final
class LabelAnswer(BaseModel):
    """A label with its probability."""

    label: str
    probability: float


@final
class FoundObject(BaseModel):
    """An object that a detector found."""

    label: str
    score: float
    box: tuple[float, float, float, float] = Field(description="x0, y0, x1 and y1 in pixels of the prepared picture.")


@final
class ClassArea(BaseModel):
    """A class of a mask, with the color and the share of the picture's pixels."""

    label: str
    color: tuple[int, int, int] = Field(description="Red, green and blue, from 0 to 255.")
    share: float


@final
class MaskAnswer(BaseModel):
    """The class of each pixel of the prepared picture."""

    png: str = Field(description="A PNG file in base64. The value of a pixel is the index of the pixel's class.")
    classes: list[ClassArea] = Field(description="The classes by index. The first class is the background.")


@final
class Prediction(BaseModel):
    """The prediction for one input."""

    labels: list[LabelAnswer] | None = Field(default=None, description="The labels, most probable first.")
    text: str | None = Field(default=None, description="The answer of a task without labels.")
    mask: MaskAnswer | None = Field(default=None, description="The mask of a task that segments pictures.")
    objects: list[FoundObject] | None = Field(default=None, description="The objects of a task that finds objects.")
    sound: str | None = Field(default=None, description="The WAV file of a task that speaks texts, in base64.")
    alignment: str | None = Field(
        default=None,
        description="A PNG file in base64 with the spectrogram, and with the attention of each step to the tokens.",
    )
    attention: InputAttention | None = Field(default=None, description="The attention that each token receives.")
    heads: list[LayerLines] | None = Field(default=None, description="The attention of each layer and head.")
    size: tuple[int, int] | None = Field(default=None, description="Width and height of the prepared picture.")
    tokens: list[str] | None = Field(default=None, description="The tokens of the input text.")
    texts: list[ExplainedText] | None = Field(default=None, description="The best texts with their steps, best first.")


@final
class PredictAnswer(BaseModel):
    """The answer to a request for predictions."""

    task: str
    predictions: list[Prediction] = Field(description="One prediction per input, in the order of the inputs.")


@final
class Health(BaseModel):
    """The state of the server."""

    status: str
    model: str
    tasks: dict[str, Any] = Field(description="The inputs of each task, such as picture or text.")
    requests: int = Field(description="The number of requests that are read, waiting or computed.")


@final
class Fault(BaseModel):
    """The reason why a request failed."""

    detail: str
