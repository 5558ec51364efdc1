"""Probe any PyTorch layer: is it causal, what does it keep, what do theory and training say?"""

import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ithbit.api.arguments import Layer, Seeds, at_least_one, checked, listed, protocol_of, seeds_of
from ithbit.errors import number, whole
from ithbit.spec import Protocol

if TYPE_CHECKING:
    from ithbit.probe.report import ProbeReport

_QUICK_MINUTES = 4.5  # stopping at the first perfect epoch suggests that a quick answer is wanted


@checked
def probe(
    layer: str | Layer,
    *,
    n: int | Iterable[int] = 8,
    layers: int | Iterable[int] = (1, 2),
    seeds: Seeds = "0-4",
    width: int = 16,
    rank_n: int = 32,
    train: bool = True,
    train_families: bool = False,
    max_epochs: int | None = None,
    stop_when_solved: bool = False,
    examples: str | None = None,
    protocol: Protocol | None = None,
    minutes: float | None = None,
    store: str | Path = "runs",
    device: str = "auto",
    workers: int | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    watch: Callable[[str], None] | None = None,
    progress: bool = False,
) -> "ProbeReport":
    """Probe any PyTorch layer that maps (batch, token, width) to the same shape.

    Is it causal? How much of the past does it keep? What does theory say about that state? What
    does training find, compared with the six families? The factory is called with the width if it
    takes one. Its runs are ordinary runs of the store, and are not trained again while the code
    stays the same. After `minutes`, unfinished runs are saved and reported; repeat the call to
    continue them.

    >>> import torch
    >>> found = probe(lambda width: torch.nn.Identity(), width=2, rank_n=4, train=False)
    >>> found.behaviour.leak, found.rank.ranks
    (None, (0, 0, 0, 0))
    """
    at_least_one(workers=workers)
    from ithbit.families import TASKS
    from ithbit.models.layer_source import layer_of, load_layer
    from ithbit.probe.report import Plan, probe_layer
    from ithbit.probe.text import report_text
    from ithbit.report.page.probe import render_probe
    from ithbit.store.writing import write_text

    if minutes is None:
        minutes = _QUICK_MINUTES if stop_when_solved else math.inf
    plan = Plan(
        whole("width", width),
        tuple(whole("n", each) for each in listed(n)),
        tuple(whole("layers", each) for each in listed(layers)),
        tuple(seeds_of(seeds)),
        whole("rank_n", rank_n),
        train,
        protocol_of(protocol, max_epochs, stop_when_solved, examples),
        number("minutes", minutes),
    )
    loaded = load_layer(layer) if isinstance(layer, str) else layer_of(layer, name)
    if train_families and train:
        from ithbit.api.training import run_here
        from ithbit.probe.families import family_runs

        runs = family_runs(
            width, list(plan.lengths), list(plan.layers), list(plan.seeds), plan.protocol
        )
        run_here(runs, store, device, workers, progress=progress)

    def said(text: str) -> None:
        if progress:
            print(text, file=sys.stderr, flush=True)
        if watch is not None:
            watch(text)

    report = probe_layer(loaded, plan, Path(store), device, workers, said)
    if out is not None:
        counts = {task: report.counts(task) for task in TASKS if report.runs}
        write_text(Path(out), render_probe(report.to_json(), counts, report_text(report)))
    return report
