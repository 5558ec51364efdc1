"""What a model is: the frozen specification that every builder, run and record refers to."""

from dataclasses import dataclass

from ithbit.errors import IthbitError, check_numbers, raise_problems
from ithbit.families import FAMILIES, Task, family_named, task_named

POSITIONS = ("none", "learned", "sinusoidal", "rotary", "polynomial")


@dataclass(frozen=True)
class ModelSpec:
    """One trained architecture; the defaults are the paper's. Checked on construction.

    A GRU has neither heads nor a feed-forward part, whatever is given. Mamba2 has no feed-forward
    part; its heads are of size d_model / n_heads, and it keeps `d_state` numbers a channel.
    `n_bits` is the training length, which the polynomial positions refer to.

    >>> ModelSpec("rhi", "gru", n_bits=0, positions="rotary")
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: model: n must be at least 1, got 0; rotary positions need a softmax \
family, got family 'gru'; use positions 'polynomial'
    """

    task: Task
    family: str
    n_bits: int
    n_layers: int = 1
    d_model: int = 16
    n_heads: int = 2
    d_ff: int = 64
    d_state: int = 16
    positions: str = "polynomial"

    def __post_init__(self) -> None:
        check_numbers("model", self)
        problems: list[str] = []
        for check in (lambda: task_named(self.task), lambda: family_named(self.family)):
            try:
                check()
            except IthbitError as error:
                problems.append(str(error))
        sizes = {
            "n": self.n_bits,
            "layers": self.n_layers,
            "width": self.d_model,
            "heads": self.n_heads,
            "feed-forward width": self.d_ff,
            "state": self.d_state,
        }
        problems += [
            f"{name} must be at least 1, got {size}" for name, size in sizes.items() if size < 1
        ]
        headless = self.family in FAMILIES and not FAMILIES[self.family].has_heads
        if not headless and self.n_heads >= 1 and self.d_model % self.n_heads:
            problems.append(
                f"heads must divide the width, got {self.n_heads} heads at width {self.d_model}"
            )
        if self.positions not in POSITIONS:
            problems.append(
                f"unknown positions {self.positions!r}; choose one of {', '.join(POSITIONS)}"
            )
        if self.positions == "rotary":
            if not self.family.startswith("softmax"):
                problems.append(
                    f"rotary positions need a softmax family, got family {self.family!r}; "
                    "use positions 'polynomial'"
                )
            elif self.n_heads >= 1 and (self.d_model // self.n_heads) % 2:
                problems.append(
                    "rotary positions turn pairs of numbers and need an even head size, got "
                    f"{self.d_model // self.n_heads}"
                )
        if self.positions == "sinusoidal" and self.d_model % 2:
            problems.append(f"sinusoidal positions need an even width, got {self.d_model}")
        raise_problems("model", problems)

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads
