"""What a bound or a count speaks of: a family, formal or trained, with its sizes.

*Formal* means the layers of the paper's Definitions 5 to 9, each MLP with one hidden layer of
ReLUs. *Trained* means the blocks of the paper's experiments: BERT blocks, pre-LN linear-attention
blocks, `nn.GRU` and Mamba2. The names are those of `ithbit.families`; the formal counterparts of
`gru` and `mamba2` are `rnn` and `ssm`.

    d = width            H = heads, each of width d/H      w = hidden (the MLP or feed-forward part)
    N = state            conv = width of Mamba2's causal convolution
    phi = feature + 1    the kernel function of linear attention
"""

from dataclasses import dataclass
from typing import Literal, get_args

from ithbit.errors import SpecError, check_numbers, raise_problems
from ithbit.families import FAMILIES

Model = Literal["formal", "trained"]
Feature = Literal["elu", "relu"]
Transition = Literal["affine", "constant"]
Activation = Literal["gelu", "relu"]

FORMAL_FAMILIES = tuple(dict.fromkeys(family.formal for family in FAMILIES.values()))
TRAINED_FAMILIES = tuple(FAMILIES)


@dataclass(frozen=True)
class Architecture:
    """A stack of equal layers; build it with `architecture`, which fills in what is left out."""

    family: str
    model: Model
    n_layers: int
    width: int
    heads: int  # 1 where the family has none
    hidden: int  # 0: the formal MLPs are affine maps; unused by gru and mamba2
    feature: Feature  # formal linear attention only: ELU+1 or ReLU+1
    transition: Transition  # formal SSM only: A(x), B(x) affine in x, or A constant and B linear
    activation: Activation  # trained attention only: the feed-forward part
    state: int  # mamba2 only
    conv: int  # mamba2 only

    def __post_init__(self) -> None:
        check_numbers("architecture", self)
        names = FORMAL_FAMILIES if self.model == "formal" else TRAINED_FAMILIES
        problems = [
            f"{what} must be at least 1, got {value}"
            for what, value in (
                ("layers", self.n_layers),
                ("width", self.width),
                ("heads", self.heads),
                ("state", self.state),
                ("conv", self.conv),
            )
            if value < 1
        ]
        for what, value, choices in (
            ("model", self.model, get_args(Model)),
            ("family", self.family, names),
            ("feature", self.feature, get_args(Feature)),
            ("transition", self.transition, get_args(Transition)),
            ("activation", self.activation, get_args(Activation)),
        ):
            if value not in choices:
                problems.append(f"unknown {what} {value!r}, choose one of {', '.join(choices)}")
        if self.heads > 0 and self.width > 0 and self.width % self.heads:
            problems.append(f"heads must divide the width, got {self.heads} and {self.width}")
        least = 0 if self.model == "formal" else 1
        if self.hidden < least:
            problems.append(f"ff must be at least {least}, got {self.hidden}")
        raise_problems("architecture", problems)

    @property
    def attention(self) -> bool:
        return self.family.startswith(("softmax", "linear"))

    @property
    def causal(self) -> bool:
        return not self.family.endswith("-full")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def conv_channels(self) -> int:
        """Channels of Mamba2's convolution: the inner width and one group of B and C."""
        return self.width + 2 * self.state

    @property
    def sizes(self) -> str:
        """The sizes that matter for this family, for people to read."""
        parts = [f"width {self.width}"]
        if self.attention or self.family == "mamba2":
            parts.append(f"{self.heads} head{'s' if self.heads > 1 else ''}")
        if self.family == "mamba2":
            parts += [f"state {self.state}", f"convolution {self.conv}"]
        elif self.model == "formal":
            parts.append(f"hidden {self.hidden}" if self.hidden else "affine readout")
            if self.family.startswith("linear"):
                parts.append("ELU+1" if self.feature == "elu" else "ReLU+1")
            if self.family == "ssm":
                constant = self.transition == "constant"
                parts.append("A constant, B linear" if constant else "A, B affine in x")
        elif self.attention:
            parts.append(f"feed-forward {self.hidden} ({self.activation.upper()})")
        return ", ".join(parts)


def architecture(
    family: str,
    model: Model = "formal",
    *,
    n_layers: int = 1,
    width: int = 16,
    heads: int | None = None,
    hidden: int = 64,
    feature: Feature = "elu",
    transition: Transition = "affine",
    activation: Activation = "gelu",
    state: int = 16,
    conv: int = 3,
) -> Architecture:
    """The architecture of that family; sizes left out are the paper's experiments'.

    Formal layers have one head unless told otherwise, trained attention and Mamba2 have two. Sizes
    a family does not have are ignored. `hidden=0` makes the formal MLPs affine.

    >>> architecture("linear-causal", n_layers=2).sizes
    'width 16, 1 head, hidden 64, ELU+1'
    >>> architecture("gru")
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: 'gru' is trained only; its formal counterpart is 'rnn', ...
    """
    if model == "formal" and family in ("gru", "mamba2"):
        raise SpecError(
            f"{family!r} is trained only; its formal counterpart is {FAMILIES[family].formal!r}, "
            f"or take model 'trained'"
        )
    if model == "trained" and family in ("rnn", "ssm"):
        trained = "gru" if family == "rnn" else "mamba2"
        raise SpecError(
            f"{family!r} is formal only; its trained counterpart is {trained!r}, "
            f"or take model 'formal'"
        )
    has_heads = family.startswith(("softmax", "linear")) or family == "mamba2"
    if not has_heads:
        heads = 1
    elif heads is None:
        heads = 2 if model == "trained" else 1
    return Architecture(
        family=family,
        model=model,
        n_layers=n_layers,
        width=width,
        heads=heads,
        hidden=hidden,
        feature=feature,
        transition=transition,
        activation=activation,
        state=state,
        conv=conv,
    )
