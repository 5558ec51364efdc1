"""Verdicts for the blocks that are trained, with their own sizes: possible, impossible or open.

*Possible*: explicit weights of these very blocks exist, certified at n, past `CERTIFIED_N` with the
margin that `every_n` has for all n at once. *Impossible* and *open* are as in
`verdicts`, with the bounds for trained blocks.
"""

from dataclasses import replace
from math import floor

from ithbit.errors import SpecError, whole
from ithbit.families import FAMILIES, TASKS, Task, task_named
from ithbit.spec import ModelSpec
from ithbit.theory.architecture import Architecture, architecture, need_theory
from ithbit.theory.bounds import bound
from ithbit.theory.certificate import LONGEST, Certificate, certify
from ithbit.theory.certifiers.trained.every_n import trained_every_n
from ithbit.theory.constructions import entry_of
from ithbit.theory.constructions.trained import (
    TRAINED,
    TrainedConstruction,
    too_large,
    too_small,
)
from ithbit.theory.verdicts import CERTIFIED_N, Entry, Verdict, by_bounds, never_enough

_WIDEST = 1_000_000  # what a margin is computed from is as long as the width
_DEEPEST = 64  # up to here the balls of a certificate stay small
# Blocks that pass the answer on multiply it by what epsilon leaves of a LayerNorm, which is 1e-12
# of a variance of 1 however many there are.
_PASSED_ON = 1 - 1e-9


def trained_verdict(
    task: str,
    family: str,
    n_layers: int,
    n_bits: int,
    *,
    width: int = 16,
    heads: int = 2,
    ff: int = 64,
    state: int = 16,
) -> Verdict:
    """Whether `n_layers` trained blocks of these sizes can solve the task at `n_bits`.

    >>> trained_verdict("lhi", "mamba2", 2, 64).answer
    'possible'
    >>> trained_verdict("rhi", "gru", 1, 7, width=1).answer
    'impossible'
    """
    name, n_bits = task_named(task), whole("n_bits", n_bits)
    if n_bits < 1:
        raise SpecError(f"n must be at least 1, got {n_bits}")
    need_theory(family)
    arch = architecture(
        family, "trained", n_layers=n_layers, width=width, heads=heads, hidden=ff, state=state
    )
    missing = "no construction is known at this depth"
    entry = entry_of(TRAINED, name, family)
    if entry is not None and entry.depth <= n_layers:
        spec = ModelSpec(name, family, n_bits, n_layers, width, heads, ff, state)
        if lacking := too_small(entry, spec):
            missing = lacking
        elif width > _WIDEST:
            missing = f"the margin of the construction is computed up to width {_WIDEST:,}"
        else:
            built = too_large(spec) is None and n_layers <= _DEEPEST
            certified = built and n_bits <= CERTIFIED_N
            closed = _margin(entry, arch)
            return Verdict(
                name,
                arch,
                n_bits,
                "possible",
                why_possible(entry, arch, certified),
                f"beside {entry.theorem}",
                certificate=certify(entry.build(spec)) if certified else None,
                every_n=closed,
                weights=_options(spec),
                longest=LONGEST if built else 0,
            )
    return by_bounds(name, arch, n_bits, missing)


def _options(spec: ModelSpec) -> str:
    """The weights of a spec as `ithbit certify` takes them."""
    sizes = {"heads": spec.n_heads, "ff": spec.d_ff, "state": spec.d_state}
    usual = {"heads": 2, "ff": 64, "state": 16}
    other = "".join(f" --{name} {size}" for name, size in sizes.items() if size != usual[name])
    return f"--model trained --layers {spec.n_layers} --width {spec.d_model}{other}"


def _margin(entry: TrainedConstruction, arch: Architecture) -> str:
    """The margin that holds for every n, rounded down."""
    always = trained_every_n(entry.task, entry.family, arch.width, arch.heads)
    return str(floor(always.margin * _PASSED_ON * 1000) / 1000)


def why_possible(entry: TrainedConstruction, arch: Architecture, certified: bool = True) -> str:
    """One sentence: the weights, and the margin that holds for every n."""
    always = trained_every_n(entry.task, entry.family, arch.width, arch.heads)
    layers = f"{entry.depth} layer{'s' if entry.depth > 1 else ''}"
    extra = arch.n_layers - entry.depth
    passing = f" and {extra:,} that pass{'es' if extra == 1 else ''} it on" if extra else ""
    return (
        f"{layers} of width {arch.width}{passing}, explicit weights of the trained blocks, "
        f"{'certified; ' if certified else 'proved by closed form: '}the margin is at least "
        f"{_margin(entry, arch)} for every n, since {always.because}"
    )


def trained_table(n_bits: int = 64, *, width: int = 16, heads: int = 2) -> tuple[Entry, ...]:
    """The paper's summary table for the blocks that are trained, derived.

    >>> {(e.task, e.family): e.min_layers for e in trained_table(4)}["lhi", "mamba2"]
    2
    """
    return tuple(
        _entry(task, family, n_bits, width, heads) for family in FAMILIES for task in TASKS
    )


def _entry(task: Task, family: str, n_bits: int, width: int, heads: int) -> Entry:
    def at(depth: int) -> Architecture:
        return architecture(family, "trained", n_layers=depth, width=width, heads=heads)

    found = entry_of(TRAINED, task, family)
    if found is None:
        return never_enough(task, at)
    certificate, depth = _certificate(found, n_bits, width, heads), found.depth
    fewer = bound(task, at(depth - 1)) if depth > 1 else None
    closed, theorem = _margin(found, at(depth)), f"beside {found.theorem}"
    return Entry(task, family, depth, theorem, width, certificate, closed, fewer)


def _certificate(
    entry: TrainedConstruction, n_bits: int, width: int, heads: int
) -> Certificate | None:
    spec = ModelSpec(entry.task, entry.family, n_bits, entry.depth, width)
    spec = replace(spec, n_heads=heads)
    if lacking := too_small(entry, spec):
        raise SpecError(f"{lacking}; ask for the table at a larger width")
    if width > _WIDEST:
        raise SpecError(f"the table has widths up to {_WIDEST:,}, got {width}")
    return certify(entry.build(spec)) if n_bits <= CERTIFIED_N and not too_large(spec) else None
