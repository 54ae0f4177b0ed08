"""What is compared: experiments that share their settings and seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from unifier.study.experiment import Experiment, check_name
from unifier_tokenizers import InputError


@final
@dataclass(frozen=True)
class Comparison:
    """Experiments run one after the other, each once for every seed, under the same settings."""

    name: str
    experiments: Sequence[Callable[..., Experiment]]
    """Functions whose keyword arguments are their settings; two of one name would write over each other's rows."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Shared by all: each experiment has a setting of each of these names."""
    seeds: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        check_name(self.name)
        names = [function.__name__ for function in self.experiments]
        if not names or not self.seeds:
            raise InputError(f'the comparison "{self.name}" needs an experiment and a seed')
        if len(set(names)) < len(names) or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f'the comparison "{self.name}" names an experiment or a seed twice: {names}, {self.seeds}')
        for seed in self.seeds:
            if not 0 <= seed < 2**32:
                raise InputError(f"seed={seed}: a number from 0 to {2**32 - 1} is expected")
