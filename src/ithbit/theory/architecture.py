"""The subject of a bound or a count: a family, formal or trained, with its sizes.

*Formal* means the layers of the paper's Definitions 5 to 9, each MLP with one hidden layer of
ReLUs. *Trained* means the blocks of the paper's experiments: BERT blocks, pre-LN linear-attention
blocks, `nn.GRU` and Mamba2. The names are those of `ithbit.families`; the formal counterparts of
`gru` and `mamba2` are `rnn` and `ssm`.

    d = width            H = heads, each of width d/H      w = hidden (the MLP or feed-forward part)
    N = state            conv = width of Mamba2's causal convolution
    phi = feature + 1    the kernel function of linear attention
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from ithbit.display import pluralize
from ithbit.errors import SpecError, check_numbers, raise_problems
from ithbit.families import FAMILIES, Family, family_named
from ithbit.layouts import MAMBA2, SOFTMAX

Model = Literal["formal", "trained"]
_OTHER: dict[Model, Model] = {"formal": "trained", "trained": "formal"}
Feature = Literal["elu", "relu"]
Transition = Literal["affine", "constant"]
Activation = Literal["gelu", "relu"]

MOST = 10**12  # limit on layers, width and all other sizes, which keeps counts within float range


def _named(model: str) -> dict[str, Family]:
    """The families that the theory covers, by their names in that model."""
    named: dict[str, Family] = {}
    for family in FAMILIES.values():
        if family.formal:
            named.setdefault(family.formal if model == "formal" else family.name, family)
    return named


FORMAL_FAMILIES = tuple(_named("formal"))
TRAINED_FAMILIES = tuple(_named("trained"))


def need_theory(family: object) -> None:
    """Raise `SpecError` if the family is known but no theorem covers it, or is not a name."""
    if not isinstance(family, str):
        problem = f"theory is about families by name, got {family!r}"
    elif (family in FAMILIES or ":" in family) and not family_named(family).formal:
        problem = f"no theory for the family {family!r}: it has no formal counterpart"
    else:
        return
    raise SpecError(f"{problem}; choose one of {', '.join(_named('formal'))}")


@dataclass(frozen=True)
class Architecture:
    """A stack of equal layers; build it with `architecture`, which sets the number of heads.

    Sizes default to those of the paper's experiments.
    """

    family: str
    model: Model
    heads: int  # 1 if the family has none
    n_layers: int = 1
    width: int = 16
    hidden: int = 64  # 0: the formal MLPs are affine maps; unused by gru and mamba2
    feature: Feature = "elu"  # formal linear attention only: ELU+1 or ReLU+1
    # Formal SSM only: A(x), B(x) affine in x, or A constant and B linear.
    transition: Transition = "affine"
    activation: Activation = SOFTMAX.activation  # trained attention only: the feed-forward part
    state: int = 16  # mamba2 only
    conv: int = MAMBA2.taps  # mamba2 only

    def __post_init__(self) -> None:
        check_numbers("architecture", self, {"n_layers": "layers", "hidden": "ff"})
        problems = [
            f"{what} must be at {f'least {least}' if value < least else f'most {MOST:,}'}, "
            f"got {value}"
            for what, value, least in (
                ("layers", self.n_layers, 1),
                ("width", self.width, 1),
                ("heads", self.heads, 1),
                ("state", self.state, 1),
                ("conv", self.conv, 1),
                ("ff", self.hidden, 0 if self.model == "formal" else 1),
            )
            if not least <= value <= MOST
        ]
        for what, value, choices in (
            ("model", self.model, get_args(Model)),
            ("family", self.family, tuple(_named(self.model))),
            ("feature", self.feature, get_args(Feature)),
            ("transition", self.transition, get_args(Transition)),
            ("activation", self.activation, get_args(Activation)),
        ):
            if value not in choices:
                problems.append(f"unknown {what} {value!r}, choose one of {', '.join(choices)}")
        if self.heads > 0 and self.width > 0 and self.width % self.heads:
            problems.append(f"heads must divide the width, got {self.heads} and {self.width}")
        raise_problems("architecture", problems)

    @property
    def of(self) -> Family:
        """The family's descriptor; that of the trained counterpart if this is formal."""
        return _named(self.model)[self.family]

    @property
    def kind(self) -> str:
        """softmax or linear, whether full or causal; else the family's name in this model."""
        return self.of.kind if self.attention or self.model == "trained" else self.family

    @property
    def attention(self) -> bool:
        return self.of.attention

    @property
    def causal(self) -> bool:
        return self.of.causal

    @property
    def causal_twin(self) -> str:
        """The causal family of the same kind."""
        return next(
            name
            for name, family in _named(self.model).items()
            if family.causal and family.kind == self.of.kind
        )

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def conv_channels(self) -> int:
        """Channels of Mamba2's convolution: the inner width and one group of B and C."""
        return self.width + 2 * self.state

    @property
    def depth(self) -> str:
        """The number of layers, as text."""
        return pluralize(self.n_layers, "layer")

    def to_json(self) -> dict[str, str | int]:
        """The architecture as records state it."""
        return {
            "family": self.family,
            "model": self.model,
            "layers": self.n_layers,
            "width": self.width,
            "sizes": self.sizes,
        }

    @property
    def sizes(self) -> str:
        """The sizes that matter for this family, as text."""
        parts = [f"width {self.width}"]
        if _has_heads(self.of, self.model):
            parts.append(pluralize(self.heads, "head"))
        if self.kind == "mamba2":
            parts += [f"state {self.state}", f"convolution {self.conv}"]
        elif self.model == "formal":
            parts.append(f"hidden {self.hidden}" if self.hidden else "affine readout")
            if self.kind == "linear":
                parts.append("ELU+1" if self.feature == "elu" else "ReLU+1")
            if self.kind == "ssm":
                constant = self.transition == "constant"
                parts.append("A constant, B linear" if constant else "A, B affine in x")
        elif self.attention:
            parts.append(f"feed-forward {self.hidden} ({self.activation.upper()})")
        return ", ".join(parts)


def _has_heads(family: Family, model: Model) -> bool:
    """Formal layers have heads only if they attend; Mamba2 has them only as a trained block."""
    return family.has_heads and (family.attention or model == "trained")


def architecture(
    family: str,
    model: Model = "formal",
    *,
    heads: int | None = None,
    **sizes: Any,
) -> Architecture:
    """The architecture of that family; the sizes are the fields of `Architecture`.

    By default formal layers have one head, trained attention and Mamba2 two. Sizes that a family
    does not have are ignored. `hidden=0` makes the formal MLPs affine.

    >>> architecture("linear-causal", n_layers=2).sizes
    'width 16, 1 head, hidden 64, ELU+1'
    >>> architecture("gru")
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: 'gru' is trained only; its formal counterpart is 'rnn', ...
    """
    need_theory(family)
    named, others = (_named(each) for each in (model, _OTHER.get(model, model)))
    if family not in named and (found := others.get(family)):
        other = found.formal if model == "formal" else found.name
        raise SpecError(
            f"{family!r} is {_OTHER[model]} only; its {model} counterpart is {other!r}, "
            f"or take model {_OTHER[model]!r} (`--model {_OTHER[model]}`)"
        )
    if family not in named or not _has_heads(named[family], model):
        heads = 1
    elif heads is None:
        heads = 2 if model == "trained" else 1
    return Architecture(family, model, heads, **sizes)
