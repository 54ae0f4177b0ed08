"""Forecasts of time series, from patches of each channel or from whole channels as tokens."""

from dataclasses import replace
from typing import Literal

import unifier as uf
from unifier.datasets import SeriesWindows
from unifier.options import SeriesFrontend, TrunkConfig

TRUNK = TrunkConfig(dim=16, depth=3, heads=4, ffn_dim=128, dropout=0.3, positions="learned")
TRAINING = uf.Training(
    learning_rate=1e-3, batch_tokens=16_384, precision="bf16", num_validations=6, epochs=6, warmup_ratio=0.1
)


def forecasting(
    *,
    data: str = "etth1",
    channels: tuple[str, ...] = (),
    horizon: int = 96,
    tokens: Literal["patches", "channels"] = "patches",
    head_dropout: float = 0.0,
    series: SeriesFrontend = SeriesFrontend(),
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Forecast the next values of each channel of a time series.

    Args:
        data: etth1, beijing_weather or los_speed in the data folder, or a table with one row per time step: a CSV file,
            datasets:DIR or parquet:DIR.
        channels: Columns of your own table; by default, all columns except date, time, timestamp and datetime.
        horizon: Number of time steps to forecast.
        tokens: patches of each channel on its own (PatchTST), or whole channels (iTransformer).
        head_dropout: Dropout probability before the linear map of the forecast.
    """
    joint = uf.check_choice("tokens", tokens, ("patches", "channels")) == "channels"
    source = SeriesWindows(data, context=series.context, horizon=horizon, channels=channels, joint=joint)
    if joint:
        series = replace(series, patch=series.context, stride=series.context)
    tokenizer = series.build(trunk)
    head = uf.ForecastingHead(horizon, trunk.dim, num_patches=tokenizer.num_patches, dropout=head_dropout)
    task = uf.Task(source, tokenizer, head)
    return uf.Experiment(trunk.build(), {source.name: task}, training)


if __name__ == "__main__":
    uf.run_this_file(__file__)
