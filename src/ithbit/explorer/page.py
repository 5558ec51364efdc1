"""The page: one HTML file that contains the models and runs them in the browser: trained runs with
their records, and the construction next to the first.

`html.py` says how text from records gets into it.
"""

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ithbit.errors import SpecError
from ithbit.explorer import words
from ithbit.explorer.words import ModelVerdict
from ithbit.families import family_named
from ithbit.html import scripted_page
from ithbit.layouts import layout_of
from ithbit.models.magnitudes import stays_finite
from ithbit.spec import ModelSpec
from ithbit.store.records import Case
from ithbit.store.writing import write_text
from ithbit.theory.certificate import certify
from ithbit.theory.constructions import TRAINED, entry_of, too_large, too_small
from ithbit.theory.layers import FloatArray
from ithbit.theory.solution import TrainedSolution
from ithbit.verification.run_verification import params_of
from ithbit.verification.stored_run import read_stored_run

HOME = "ithbit.explorer"
SCRIPTS = ("model.js", "search.js", "draw.js", "pictures.js", "view.js")
MOST_RUNS = 2
MOST_BYTES = 1_000_000
LONGEST = 256  # bits that a person can click
_TEXTS = ("label", "title", "name", "origin", "how", "samples")


@dataclass(frozen=True, eq=False)
class PageModel:
    """One model as the page shows it. Weights are float32 for a run, float64 for a construction.

    The page computes in double precision, which does not overflow where float32 does; so it gives
    no answer for a run with which float32 might (`models/magnitudes.py`).
    """

    label: str
    title: str
    name: str
    origin: str
    how: str
    spec: ModelSpec
    weights: dict[str, FloatArray]
    standing: ModelVerdict
    samples: str = ""
    case: Case | None = None  # the counterexample, else the least margin on record

    def to_json(self) -> dict[str, Any]:
        spec, family = self.spec, family_named(self.spec.family)
        layout = layout_of(spec.family)
        weights = dict(sorted(self.weights.items()))  # files have them in any order
        numbers = list(weights.values())
        kind = "f4" if all(value.dtype == np.float32 for value in numbers) else "f8"
        flat = np.concatenate([value.ravel() for value in numbers]).astype(f"<{kind}")
        return {
            **{name: getattr(self, name) for name in _TEXTS},
            "standing": asdict(self.standing),
            "case": self.case and asdict(self.case),
            "spec": {
                **{"task": spec.task, "n": spec.n_bits, "layers": spec.n_layers},
                **{"kind": family.kind, "causal": family.causal, "positions": spec.positions},
                **{"d": spec.d_model, "heads": spec.n_heads, "ff": spec.d_ff},
                "state": spec.d_state,
                **{"eps": layout.norm_eps, "sum_eps": layout.denominator_eps, "taps": layout.taps},
            },
            "shapes": [[name, list(value.shape)] for name, value in weights.items()],
            "finite": _is_safe(weights, spec) if kind == "f4" else bool(np.isfinite(flat).all()),
            "dtype": kind,
            "data": base64.b64encode(flat.tobytes()).decode(),
        }


def _is_safe(weights: dict[str, FloatArray], spec: ModelSpec) -> bool:
    stacked = {name: torch.as_tensor(value).unsqueeze(0) for name, value in weights.items()}
    return bool(stays_finite(stacked, spec, spec.n_bits))


def of_run(folder: Path) -> PageModel:
    """The model of a finished run."""
    stored = read_stored_run(folder)
    run, weights = stored.spec, stored.weights
    spec, family = run.model, family_named(run.model.family)
    if family.kind not in words.KINDS:
        what = "a layer of your own" if spec.code else f"the family {spec.family}"
        raise SpecError(f"{run.name} has {what}; the page runs only the paper's six families")
    if spec.n_bits > LONGEST:
        raise SpecError(f"the page shows up to n = {LONGEST}, got n = {spec.n_bits} in {run.name}")
    record = stored.read_verification()
    verification = record.found if record else None
    label, origin = words.origin(stored.result)
    return PageModel(
        label,
        words.title(family, spec.n_layers),
        run.name,
        origin,
        words.mechanism(spec),
        spec,
        {name: value.numpy() for name, value in params_of(run, weights).items()},
        words.standing(verification),
        words.samples(stored.result),
        verification.counterexample or verification.worst if verification else None,
    )


def construction(spec: ModelSpec) -> TrainedSolution | None:
    """Explicit weights for the same blocks at the same sizes; None if there are none."""
    sizes = replace(spec, positions=ModelSpec.positions)
    entry = entry_of(TRAINED, spec.task, spec.family)
    if entry is None or too_small(entry, sizes) or too_large(sizes):
        return None
    return entry.build(sizes)


def of_solution(solution: TrainedSolution) -> PageModel:
    """A construction, with what is proved about it."""
    spec = solution.spec
    certificate = certify(solution)
    worst = certificate.worst
    label, origin = words.BY_HAND
    return PageModel(
        label,
        words.title(family_named(spec.family), spec.n_layers),
        f"construction {solution.theorem}",
        origin,
        "The same kind of model, with weights that follow from a proof instead of training.",
        spec,
        solution.weights,
        words.certified(certificate),
        case=Case(worst.bits, worst.index, worst.margin),
    )


def gather(folders: Sequence[Path], with_construction: bool = True) -> list[PageModel]:
    """The runs of a page, and after them the construction for the first one's blocks, if any."""
    if not 1 <= len(folders) <= MOST_RUNS:
        raise SpecError(f"a page shows one run or two side by side, got {len(folders)}")
    entries = [of_run(folder) for folder in folders]
    first = entries[0].spec
    for other in entries[1:]:
        if (other.spec.task, other.spec.n_bits) != (first.task, first.n_bits):
            raise SpecError(
                "two runs on one page must have the same task and the same n, since both answer "
                f"the same question; got {entries[0].name} and {other.name}"
            )
    solution = construction(first) if with_construction else None
    return entries if solution is None else [*entries, of_solution(solution)]


def render_page(entries: Sequence[PageModel]) -> str:
    """The whole page as HTML."""
    return scripted_page(
        HOME,
        SCRIPTS,
        {"models": [entry.to_json() for entry in entries]},
        task=entries[0].spec.task,
        n=entries[0].spec.n_bits,
        names=[entry.name for entry in entries],
    )


def write_page(entries: Sequence[PageModel], path: Path) -> Path:
    """Write the page, whole or not at all."""
    page = render_page(entries)
    if (size := len(page.encode())) > MOST_BYTES:
        raise SpecError(
            f"the page would have {size:,} bytes, and at most {MOST_BYTES:,} are allowed; "
            "leave out the construction or the second run, or show a smaller model"
        )
    return write_text(path, page)
