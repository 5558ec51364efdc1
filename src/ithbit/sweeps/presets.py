"""Named sweeps: plain functions that give run specs.

`paper` is the main sweep of the paper: 27 variants at four lengths and five seeds, 540 runs. In its
main table one-layer full and causal attention coincide at the readout (Remark 7) and are merged,
which leaves 23 rows. `positions` is its encoding ablation, 240 runs, of which 54 are also runs of
`paper`.
"""

from collections.abc import Callable, Iterable

from ithbit.errors import SpecError
from ithbit.families import POSITIONS, Task, family_named, group
from ithbit.published import LENGTHS, published
from ithbit.spec import ModelSpec, Protocol, RunSpec

Variant = tuple[Task, str, int]  # task, family, layers

VARIANTS: tuple[Variant, ...] = tuple(
    (variant.task, variant.family, variant.n_layers) for variant in published().accuracy
)
CONSTRUCTIVE = tuple(variant for variant in VARIANTS if group(*variant) == "constructive")


def cross(
    variants: Iterable[Variant],
    lengths: Iterable[int],
    seeds: Iterable[int],
    positions: Iterable[str] = ("polynomial",),
    protocol: Protocol = Protocol(),
) -> list[RunSpec]:
    """Every variant at every length and seed, with every encoding that its family takes."""
    seeds, positions, lengths = list(seeds), list(positions), list(lengths)
    return [
        RunSpec(ModelSpec(task, family, n, layers, positions=encoding), seed, protocol)
        for task, family, layers in variants
        for n in lengths
        for encoding in positions
        if family_named(family).takes(encoding)
        for seed in seeds
    ]


def paper() -> list[RunSpec]:
    """The main sweep: 540 runs.

    >>> len(paper())
    540
    """
    return cross(VARIANTS, LENGTHS, range(5))


def positions() -> list[RunSpec]:
    """The encoding ablation: 240 runs.

    >>> len(positions()), len(set(positions()) & set(paper()))
    (240, 54)
    """
    return cross(CONSTRUCTIVE, (32, 64), range(3), POSITIONS)


def longer() -> list[RunSpec]:
    """Beyond the paper: the constructive variants at n = 96 and 128, stopped when solved."""
    return cross(CONSTRUCTIVE, (96, 128), range(5), protocol=Protocol(stop_when_solved=True))


def smoke() -> list[RunSpec]:
    """A minute on a CPU: the constructive variants at n = 4, two seeds, a few short epochs."""
    protocol = Protocol(epoch_examples=20_000, max_epochs=6, stop_when_solved=True)
    return cross(CONSTRUCTIVE, (4,), range(2), protocol=protocol)


def demo() -> list[RunSpec]:
    """Half a minute on two cores: LHI at n = 8, where theory separates two kinds of model.

    One layer of a GRU has a small solution (Theorem 14a); one layer of softmax attention has none
    once n is large (Theorem 14b), and no published run of it succeeded. Two seeds each; the GRU
    trains on after its first perfect epoch, so that its last weights are good.
    """
    able = cross((("lhi", "gru", 1),), (8,), range(2), protocol=Protocol(max_epochs=12))
    hardest: tuple[Variant, ...] = (("lhi", "softmax-full", 1),)
    return able + cross(hardest, (8,), range(2), protocol=Protocol(max_epochs=8))


PRESETS: dict[str, Callable[[], list[RunSpec]]] = {
    make.__name__: make for make in (paper, positions, longer, smoke, demo)
}


def preset(name: str) -> list[RunSpec]:
    """The runs of a named sweep."""
    if name not in PRESETS:
        raise SpecError(
            f"unknown sweep {name!r}; choose one of {', '.join(PRESETS)}, or give a .toml file"
        )
    return PRESETS[name]()
