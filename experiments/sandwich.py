"""Right on all inputs up to here <= n_max <= proved impossible past here: RHI at small widths.

From below, for each family: explicit weights (Gray code), or weights found by a search, stored in
`small_weights.json` and run again here on all n 2^n inputs. From above: `ithbit bound`.

    python experiments/sandwich.py [--figure sandwich.svg] [--json FILE]
    python experiments/sandwich.py --search gru --width 2 --n 4 [--seeds 64] [--minutes 10]

A search trains many seeds at once on all inputs in float64 and adds what it finds to the file. A
search that finds nothing proves nothing.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gray_code import gray_rnn, gray_ssm
from ithbit.models import classifier
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import all_inputs
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import token_table
from ithbit.theory.architecture import Architecture, architecture
from ithbit.theory.bounds import bound
from ithbit.theory.precision import smallest_margin
from ithbit.theory.verdicts import hidden_units

WEIGHTS = Path(__file__).with_name("small_weights.json")


@dataclass(frozen=True)
class Row:
    """One family at one size: right on all inputs at n = `low`, impossible past `high`."""

    label: str
    low: int
    high: int
    how: str

    @property
    def factor(self) -> float | None:
        return self.high / self.low if self.low else None


def gray_row(family: str, hidden: int) -> Row:
    """The largest n whose Gray-code weights fit, run on all inputs."""
    build = {"ssm": gray_ssm, "rnn": gray_rnn}[family]
    n = 1
    while hidden_units(build(n + 1)) <= hidden:
        n += 1
    exact = n <= 5
    assert smallest_margin(build(n), object if exact else np.float64) > 0
    how = f"explicit weights, all inputs in {'rationals' if exact else 'float64'}"
    high = bound("rhi", architecture(family, width=1, hidden=hidden)).n_star
    return Row(f"formal {family.upper()}, width 1, hidden {hidden}", n, high, how)


def found_rows() -> list[Row]:
    """The largest n of each model in the file of found weights, rerun on all inputs."""
    rows: dict[tuple, tuple[ModelSpec, float]] = {}
    for kept in json.loads(WEIGHTS.read_text()):
        spec = ModelSpec(**kept["spec"])
        params = {
            name: torch.tensor(v, dtype=torch.float64)[None] for name, v in kept["weights"].items()
        }
        margin = float(margins(params, spec).min())
        assert margin > 0, f"the weights kept for {spec} are wrong on an input"
        key = (spec.family, spec.d_model, spec.d_state, spec.n_heads)
        if key not in rows or rows[key][0].n_bits < spec.n_bits:
            rows[key] = spec, margin
    return [_found_row(spec, margin) for spec, margin in rows.values()]


def _arch(spec: ModelSpec) -> Architecture:
    return architecture(
        spec.family,
        "trained",
        width=spec.d_model,
        heads=spec.n_heads,
        hidden=spec.d_ff,
        state=spec.d_state,
    )


def _found_row(spec: ModelSpec, margin: float) -> Row:
    name = {"gru": "nn.GRU", "mamba2": "Mamba2"}.get(spec.family, spec.family)
    state = f", state {spec.d_state}" if spec.family == "mamba2" else ""
    how = f"found by search, all inputs in float64, margin {margin:.2g}"
    high = bound("rhi", _arch(spec)).n_star
    return Row(f"{name}, width {spec.d_model}{state}", spec.n_bits, high, how)


def rows() -> list[Row]:
    """Every family at small widths."""
    nothing = architecture("linear-causal", "trained", width=1, heads=1)
    return [
        *(gray_row("ssm", hidden) for hidden in (8, 64)),
        *(gray_row("rnn", hidden) for hidden in (16, 64)),
        *found_rows(),
        Row("linear attention as trained, width 1", 0, bound("rhi", nothing).n_star, "exact"),
    ]


def margins(params: dict[str, Tensor], spec: ModelSpec) -> Tensor:
    """The margin of every input, seed by seed."""
    seeds = len(params["embed"])
    ((bits, index),) = all_inputs(spec.n_bits)
    examples = Examples(
        torch.tensor(bits).expand(seeds, -1, -1), torch.tensor(index).expand(seeds, -1)
    )
    table = token_table(spec.task, spec.n_bits, dtype=torch.float64)
    signs = 2 * examples.answer.double() - 1
    return classifier.logits(params, spec, table, examples) * signs


def search(spec: ModelSpec, seeds: int, minutes: float, steps: int = 6000) -> dict | None:
    """Weights that are right on all inputs, or None; tries batches of seeds until time is up."""
    end, first = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        generator = torch.Generator().manual_seed(first)
        drawn = classifier.stack([classifier.init(spec, first + k) for k in range(seeds)])
        params = {}
        for name, value in drawn.items():
            size = 0.5 + 3 * torch.rand(seeds, *[1] * (value.dim() - 1), generator=generator)
            params[name] = (value * size).double().requires_grad_()
        optimiser = torch.optim.Adam(list(params.values()), lr=0.02)
        most = 0
        for _ in range(steps):
            margin = margins(params, spec)
            least = margin.detach().min(1).values
            most = max(most, int((margin > 0).sum(1).max()))
            if least.max() > 0.5:
                seed = int(least.argmax())
                return {name: value[seed].detach().tolist() for name, value in params.items()}
            optimiser.zero_grad()
            torch.nn.functional.softplus(-margin).mean(1).sum().backward()
            optimiser.step()
            if time.monotonic() > end:
                break
        first += seeds
        print(f"{first} seeds, at most {most} of {margin.shape[1]} inputs right", flush=True)
    return None


def draw(found: list[Row], path: Path) -> None:
    """One bar per family, from the n that is right to the n past which it is impossible."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 0.42 * len(found) + 1.1), layout="constrained")
    for place, row in enumerate(reversed(found)):
        axes.plot([max(row.low, 0.5), max(row.high, 0.5)], [place, place], color="0.75", lw=6)
        axes.plot(max(row.low, 0.5), place, "o", color="tab:blue", ms=7)
        axes.plot(max(row.high, 0.5), place, "|", color="tab:red", ms=16, mew=3)
        axes.annotate(
            f"{row.low} ≤ n_max ≤ {row.high}" if row.low < row.high else f"n_max = {row.high}",
            (max(row.high, 0.5), place),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.4, 512)
    ticks = [1, 2, 4, 8, 16, 32, 64, 128]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks(range(len(found)), [row.label for row in reversed(found)], fontsize=8)
    axes.set_xlabel("n: right on all inputs (dot), proved impossible past (bar)")
    axes.set_title("One layer, index last", fontsize=9)
    figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--search", help="a trained family")
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--state", type=int, default=1)
    parser.add_argument("--n", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    if options.search:
        spec = ModelSpec(
            "rhi",
            options.search,
            n_bits=options.n,
            d_model=options.width,
            n_heads=1,
            d_ff=8,
            d_state=options.state,
        )
        weights = search(spec, options.seeds, options.minutes)
        if weights is None:
            raise SystemExit("not found")
        sizes = {"n_bits": options.n, "d_model": options.width, "n_heads": 1, "d_ff": 8}
        sizes |= {"d_state": options.state, "task": "rhi", "family": options.search}
        kept = [*json.loads(WEIGHTS.read_text()), {"spec": sizes, "weights": weights}]
        WEIGHTS.write_text("[\n" + ",\n".join(json.dumps(each) for each in kept) + "\n]\n")
        print(f"found, kept in {WEIGHTS.name}")
    else:
        found = rows()
        for row in found:
            factor = "" if row.factor is None else f" (factor {row.factor:.3g})"
            print(f"{row.label}: {row.low} <= n_max <= {row.high}{factor}; {row.how}")
        if options.json:
            options.json.write_text(json.dumps([vars(row) for row in found], indent=1))
        if options.figure:
            draw(found, options.figure)
