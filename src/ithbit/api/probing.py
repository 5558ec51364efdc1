"""Measure a layer: what any PyTorch layer keeps of its input (`probe`), and the largest n that a
layer or family learns (`capacity`)."""

import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ithbit.api.arguments import (
    Layer,
    Observers,
    Seeds,
    Watch,
    as_list,
    checked,
    model_of,
    on_slurm,
    protocol_of,
    renamed,
    seeds_of,
)
from ithbit.api.sweeps import longest, sweep
from ithbit.api.training import run_here
from ithbit.display import pluralize, say
from ithbit.engine.options import TrainingOptions
from ithbit.errors import SpecError, as_int, number
from ithbit.models.layer_source import layer_for, layer_of, load_layer
from ithbit.spec import Protocol, RunSpec

if TYPE_CHECKING:
    from ithbit.capacity_search.result import Capacities
    from ithbit.capacity_search.search_rounds import Search, SearchState
    from ithbit.contract.report import ProbeReport

Number = TypeVar("Number", int, float)
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
    options = TrainingOptions(device, workers)
    from ithbit.contract.probe import probe_layer
    from ithbit.contract.report import ProbePlan
    from ithbit.families import FAMILIES
    from ithbit.reporting.page.probe import render_probe
    from ithbit.store.writing import write_text

    if minutes is None:
        minutes = _QUICK_MINUTES if stop_when_solved else math.inf
    plan = ProbePlan(
        as_int("width", width),
        tuple(as_int("n", each) for each in as_list(n)),
        tuple(as_int("layers", each) for each in as_list(layers)),
        tuple(seeds_of(seeds)),
        as_int("rank_n", rank_n),
        train,
        protocol_of(protocol, max_epochs, stop_when_solved, examples),
        number("minutes", minutes),
    )
    loaded = load_layer(layer) if isinstance(layer, str) else layer_of(layer, name)
    if train_families and train:
        run_here(plan.runs(*FAMILIES), store, options, Observers(progress=progress))

    def report_progress(text: str) -> None:
        if progress:
            say(text, file=sys.stderr)
        if watch is not None:
            watch(text)

    report = probe_layer(loaded, plan, Path(store), options, report_progress)
    if out is not None:
        write_text(Path(out), render_probe(report))
    return report


@renamed(compile="compiled")
@checked
def capacity(
    task: str,
    family: str | Layer,
    *,
    width: int | str | Iterable[int] = 16,
    layers: int | str | Iterable[int] = 1,
    lr: float | str | Iterable[float] = "0.001,0.003,0.01",
    seeds: Seeds = "0-4",
    need: int = 4,
    factor: float = 1.25,
    start: int = 8,
    most_n: int = 512,
    positions: str = "polynomial",
    heads: int = 2,
    ff: int = 64,
    max_epochs: int | None = None,
    examples: str | None = None,
    protocol: Protocol | None = None,
    minutes: float | None = None,
    store: str | Path = "runs",
    device: str = "auto",
    kernels: str = "auto",
    compiled: str = "auto",
    workers: int | None = None,
    on: str = "local",
    slurm: str | Iterable[str] | None = None,
    slurm_profile: str | Path | None = None,
    dry_run: bool = False,
    out: str | Path | None = None,
    watch: Watch | None = None,
    progress: bool = False,
) -> "Capacities":
    """Find the largest n that an architecture learns, for each width and number of layers.

    A length is solved if, at one of the learning rates, at least `need` seeds succeed and are not
    refuted. The search doubles the length, then bisects, until a solved and a failed length are
    within the `factor`. These two are the result: a bracket, *observed*. With it come the measured
    state S; the bits per number of the state; 32·S, the limit of a recurrent evaluation in 32-bit
    numbers; and, where it is smaller, n*, past which no weights solve the task.

    Training uses mixed examples and ends at a held-out loss of 0.001, or after 200 epochs. The runs
    are ordinary runs of the store, which is all that a search needs to resume: stop it at any time
    and run it again. `minutes` limits the time; on Slurm, jobs that are running are waited for.
    With `out` the result is also written as a page, with a figure that shows it among the known
    capacities.

    >>> import tempfile, ithbit
    >>> tiny = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    >>> with tempfile.TemporaryDirectory() as store:
    ...     found = capacity("rhi", "gru", width=2, lr=0.01, most_n=2, start=2, protocol=tiny,
    ...                      store=store, workers=1)
    >>> found[0].failed_at, found[0].tried, found.final
    (1, '2- 1-', True)
    """
    options = TrainingOptions(device, workers, kernels, compiled)
    widths, depths = numbers("width", width, int), numbers("layers", layers, int)
    rates = tuple(numbers("lr", lr, float))
    first = model_of(task, family, positions, (1, depths[0], widths[0], heads, ff))
    models = [replace(first, n_layers=depth, d_model=wide) for wide in widths for depth in depths]
    if models[0].code:
        layer_for(models[0]).factory  # noqa: B018 (a factory that training would refuse)
    if minutes is not None and not number("minutes", minutes) > 0:
        raise SpecError(f"minutes must be more than 0, got {minutes:g}")
    on_cluster = on_slurm(
        on,
        {"kernels": kernels, "compile": compiled},
        {"slurm": slurm, "slurm-profile": slurm_profile},
    )
    from ithbit.capacity_search.result import Capacities, row
    from ithbit.capacity_search.search import SearchSettings
    from ithbit.capacity_search.search_rounds import PROTOCOL, Search, round_minutes, rounds

    ask = SearchSettings(rates, tuple(seeds_of(seeds)), need, factor, start, most_n)
    settings = protocol_of(protocol or PROTOCOL, max_epochs, examples=examples)
    search = Search(ask, Path(store), settings)
    searches, chosen_device = dict.fromkeys(models, search), options.chosen_device
    until = time.monotonic() + 60 * (math.inf if minutes is None else minutes)

    def train(runs: list[RunSpec]) -> None:
        if on_cluster:
            sweep(
                runs, store=store, device=device, workers=workers, on=on, slurm=slurm,
                slurm_profile=slurm_profile, watch=watch, progress=progress,
            )  # fmt: skip
            return
        limited = replace(options, minutes=round_minutes(chosen_device, until))
        run_here(runs, store, limited, Observers(watch, progress=progress))

    standings: list[SearchState] = []
    if dry_run:
        standings = [search.state(model) for model in searches]
        say(outlook(standings, search, options), file=sys.stderr)
    else:
        for turn, standings in enumerate(rounds(searches, train, chosen_device, until)):
            if progress:
                time_needed = [] if turn else [outlook(standings, search, options)]
                lines = [each.sentence() for each in standings if not each.done]
                say(*time_needed, *lines, file=sys.stderr)
    rows = tuple(row(standing, measure=not dry_run) for standing in standings)
    stuck = tuple(each.sentence() for each in standings if each.stuck and not each.train)
    capacities = Capacities(rows, search.sentence(), stuck)
    if out is not None:
        from ithbit.capacity_search.card import render_card
        from ithbit.store.writing import write_text

        write_text(Path(out), render_card(capacities))
    return capacities


def numbers(
    name: str, argument: "Number | str | Iterable[Number]", kind: "type[Number]"
) -> "list[Number]":
    """Numbers as users give them: one, several, or a string such as 4,8,16.

    >>> numbers("width", "4,8", int), numbers("lr", 0.01, float)
    ([4, 8], [0.01])
    """
    parts: list[Any] = argument.split(",") if isinstance(argument, str) else as_list(argument)
    exactly = as_int if kind is int else number
    try:
        values = [kind(each if isinstance(each, str) else exactly(name, each)) for each in parts]
    except ValueError:
        example = "4,8,16" if kind is int else "0.001,0.01"
        raise SpecError(f"{name} must be numbers such as {example}, got {argument!r}") from None
    if not values or len(set(values)) != len(values):
        raise SpecError(f"give every {name} once, and at least one, got {argument!r}")
    return values


def outlook(standings: "list[SearchState]", search: "Search", options: TrainingOptions) -> str:
    """How long the search may take, as a sentence."""
    ask = search.ask
    unfinished = [standing for standing in standings if not standing.done]
    cells = f"{pluralize(len(standings), 'cell')}, {len(unfinished)} open"
    if not unfinished:
        return cells
    some = set(ask.seeds[: len(ask.seeds) - ask.need + 1])
    runs = [
        run
        for standing in unfinished
        for (_, seed), run in search.runs(standing.model, standing.trying or ask.start).items()
        if seed in some
    ]
    return (
        f"{cells}; if all fail at the length tried next, that takes "
        f"{longest(runs, search.store, options)}, and twice as long at twice the length"
    )
