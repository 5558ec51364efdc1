"""Training: one configuration or a whole sweep, and the status of a store's runs."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ithbit.api.arguments import (
    Layer,
    Seeds,
    at_least_one,
    checked,
    listed,
    model_of,
    on_slurm,
    protocol_of,
    seeds_of,
)
from ithbit.api.results import Results
from ithbit.api.sinks import Watch, watching
from ithbit.errors import SpecError, whole
from ithbit.families import family_named, task_named
from ithbit.models.layer_source import layer_for
from ithbit.shown import Shown
from ithbit.spec import Protocol, RunSpec, cell
from ithbit.store.reading import check_kind
from ithbit.store.status import need_store
from ithbit.sweep.select import Filter, sweep_runs

if TYPE_CHECKING:
    from ithbit.api.slurm import Cancelled, Submitted
    from ithbit.api.standing import Planned, Status
    from ithbit.store.merging import Merged
    from ithbit.tasks.indexing import Instance

_MOST_SHOWN = 1_000_000  # bits of samples; that many take seconds to print


@checked
def train(
    task: str,
    family: str | Layer,
    *,
    n: int = 8,
    layers: int = 1,
    seeds: Seeds = "0-4",
    positions: str = "polynomial",
    width: int = 16,
    heads: int = 2,
    ff: int = 64,
    lr: float | None = None,
    batch_size: int | None = None,
    max_epochs: int | None = None,
    stop_when_solved: bool = False,
    examples: str | None = None,
    protocol: Protocol | None = None,
    device: str = "auto",
    kernels: str = "auto",
    compile: str = "auto",
    workers: int | None = None,
    store: str | Path = "runs",
    retry_failed: bool = False,
    tensorboard: str | Path | None = None,
    watch: Watch | None = None,
    progress: bool = False,
) -> Results:
    """Train one configuration under the paper's protocol, several seeds at once.

    Finished runs are read from the store, and unfinished ones continue from their checkpoints: stop
    it at any time and run it again.

    >>> import tempfile, ithbit
    >>> tiny = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    >>> with tempfile.TemporaryDirectory() as store:
    ...     results = train("rhi", "gru", n=2, seeds=[0, 1], protocol=tiny, store=store, workers=1)
    >>> [(result.spec.seed, result.epochs) for result in results]
    [(0, 1), (1, 1)]
    """
    at_least_one(workers=workers)
    model = model_of(task, family, n, layers, width, heads, ff, positions)
    protocol = protocol_of(protocol, max_epochs, stop_when_solved, examples, lr, batch_size)
    runs = cell(model, protocol, seeds_of(seeds))
    told = (watch, tensorboard, progress)
    return run_here(runs, store, device, workers, kernels, compile, retry_failed, *told)


def run_here(
    runs: list[RunSpec],
    store: str | Path,
    device: str = "auto",
    workers: int | None = None,
    kernels: str = "auto",
    compile: str = "auto",
    retry_failed: bool = False,
    watch: Watch | None = None,
    tensorboard: str | Path | None = None,
    progress: bool = False,
    minutes: float | None = None,
) -> Results:
    """Train runs on this machine, for at most `minutes`; other arguments are those of `train`."""
    store = Path(store)
    check_kind(store)

    # These import torch, which takes seconds: report mistakes first.
    from ithbit.engine.device import choose_device
    from ithbit.engine.how import Unfinished
    from ithbit.engine.steppers.choice import switch_named
    from ithbit.sweep.runner import run_all

    chosen, choice = choose_device(device), switch_named(kernels)
    compiled = switch_named(compile, "compile")
    with watching(runs, chosen.reason, watch, tensorboard, progress) as watcher:
        outcomes = run_all(
            runs, store, device, workers, watcher, retry_failed, choice, minutes, compiled
        )
    return Results((done for done in outcomes if not isinstance(done, Unfinished)), store)


def _selected(
    name: str | Path | Iterable[RunSpec],
    task: str | Iterable[str] | None,
    family: str | Iterable[str] | None,
    layers: int | Iterable[int] | None,
    n: int | Iterable[int] | None,
    seeds: Seeds | None,
    max_epochs: int | None,
    stop_when_solved: bool,
    examples: str | None,
) -> list[RunSpec]:
    """The runs of a sweep that pass the filters."""
    keep = Filter(
        [task_named(each) for each in listed(task)],
        [family_named(each).name for each in listed(family)],
        [whole("layers", each) for each in listed(layers)],
        [whole("n", each) for each in listed(n)],
        [] if seeds is None else seeds_of(seeds),
        max_epochs,
        stop_when_solved,
        examples,
    )
    if isinstance(name, str | Path):
        return sweep_runs(str(name), keep)
    runs: list[Any] = list(name) if isinstance(name, Iterable) else [name]
    for each in runs:
        if not isinstance(each, RunSpec):
            where = f" in a {type(name).__name__}" if isinstance(name, Iterable) else ""
            raise SpecError(
                f"a sweep is the name of a preset, a .toml file or a list of RunSpec, got "
                f"{each!r:.60}{where}"
            )
    return keep.apply(runs)


@checked
def sweep(
    name: str | Path | Iterable[RunSpec],
    *,
    task: str | Iterable[str] | None = None,
    family: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    n: int | Iterable[int] | None = None,
    seeds: Seeds | None = None,
    max_epochs: int | None = None,
    stop_when_solved: bool = False,
    examples: str | None = None,
    store: str | Path = "runs",
    device: str = "auto",
    kernels: str = "auto",
    compile: str = "auto",
    workers: int | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    on: str = "local",
    slurm: str | Iterable[str] | None = None,
    slurm_profile: str | Path | None = None,
    runs_per_task: int | None = None,
    detach: bool = False,
    cancel: bool = False,
    tensorboard: str | Path | None = None,
    watch: Watch | None = None,
    progress: bool = False,
) -> "Results | Planned | Submitted | Cancelled":
    """Train every run of a sweep that has no result yet; stop and rerun it at any time.

    Several processes may work on one store: each run is trained by one of them. A run that fails is
    recorded with its traceback, and the others continue. On Slurm, rerun it to watch the jobs it
    left running and to submit runs that have neither a result nor a job.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as store:
    ...     print(sweep("smoke", task="rhi", family="softmax-full", store=store, dry_run=True))
    missing   constructive rhi_n4_softmax-full_L1d16h2_polynomial_s0-...
    missing   constructive rhi_n4_softmax-full_L1d16h2_polynomial_s1-...
    2 runs, 0 done already; the rest takes at most about ...
    """
    at_least_one(workers=workers, runs_per_task=runs_per_task)
    chosen = (task, family, layers, n, seeds, max_epochs, stop_when_solved, examples)
    runs, store = _selected(name, *chosen), Path(store)
    told = (watch, tensorboard, progress)
    check_kind(store)
    if on_slurm(
        on, {"kernels": kernels, "compile": compile},
        {"slurm": slurm, "slurm-profile": slurm_profile, "runs-per-task": runs_per_task,
         "detach": detach, "cancel": cancel},
    ):  # fmt: skip
        from ithbit.api.slurm import Wish, sweep_on_slurm

        profile = None if slurm_profile is None else Path(slurm_profile)
        wish = Wish(store, device, workers, listed(slurm), profile, runs_per_task, retry_failed)
        return sweep_on_slurm(runs, wish, dry_run, detach, cancel, *told)
    if dry_run:
        from ithbit.api.standing import longest, planned

        def outlook(todo: list[RunSpec]) -> str:
            for model in dict.fromkeys(run.model for run in todo if run.model.code):
                layer_for(model).factory  # noqa: B018 (a factory that training would refuse)
            time = longest(todo, store, device, workers)
            return f"the rest takes {time}, if every run needs all its epochs"

        return planned(runs, store, outlook)
    return run_here(runs, store, device, workers, kernels, compile, retry_failed, *told)


@checked
def status(
    name: str | Path | Iterable[RunSpec] | None = None,
    *,
    task: str | Iterable[str] | None = None,
    family: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    n: int | Iterable[int] | None = None,
    seeds: Seeds | None = None,
    max_epochs: int | None = None,
    stop_when_solved: bool = False,
    examples: str | None = None,
    store: str | Path = "runs",
) -> "Status":
    """Report what is done, running, queued on a cluster, stopped, failed or missing in a store.

    With a sweep, report only on its runs. A run whose record is damaged is set aside, as in tables
    and merges, with the reason. The store's Slurm jobs are looked up; nothing is submitted.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as store:
    ...     status("paper", store=store)
    540 missing (540 runs)
    """
    from ithbit.api.standing import standing

    folder = Path(store)
    need_store(folder)
    chosen = (task, family, layers, n, seeds, max_epochs, stop_when_solved, examples)
    return standing(folder, None if name is None else _selected(name, *chosen))


@checked
def merge(source: str | Path, *, store: str | Path = "runs") -> "Merged":
    """Copy the finished and failed runs of another store into this one.

    Runs that are finished in this store are not overwritten.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    ...     merge(one, store=other)
    0 runs merged, 0 were there already, 0 unfinished ones left out, 0 set aside
    """
    from ithbit.store.merging import merge as merge_stores

    return merge_stores(Path(source), Path(store))


@checked
def params(
    task: str,
    family: str | Layer,
    *,
    n: int = 8,
    layers: int = 1,
    positions: str = "polynomial",
    width: int = 16,
    heads: int = 2,
    ff: int = 64,
) -> int:
    """Count the trained parameters of one configuration.

    >>> params("lhi", "mamba2", layers=2)
    3261
    """
    model = model_of(task, family, n, layers, width, heads, ff, positions)
    from ithbit.models.classifier import n_parameters

    return n_parameters(model)


class Samples(Shown, list["Instance"]):
    """Instances, in order."""

    def parts(self) -> Iterator[str]:
        for number, instance in enumerate(self):
            yield ("\n" if number else "") + " | ".join(instance.tokens)
            yield f"index {instance.index} asks for bit number {instance.index}: {instance.answer}"


@checked
def sample(
    task: str, *, n: int = 8, seed: int = 0, count: int = 1, examples: str | None = None
) -> Samples:
    """Show inputs in readable form: the first training examples of a seed.

    >>> sample("rhi", n=4)
    bit 0 | bit 1 | bit 1 | bit 1 | index 3
    index 3 asks for bit number 3: 1
    """
    from ithbit.tasks.stream import draw

    chosen = task_named(task)
    n, seed, count = whole("n", n), whole("seed", seed), whole("count", count)
    if n < 1 or seed < 0 or count < 1:
        raise SpecError(
            f"n and count must be at least 1 and the seed at least 0, got n={n}, count={count}, "
            f"seed={seed}"
        )
    if n * count > _MOST_SHOWN:
        raise SpecError(
            f"sample shows at most {_MOST_SHOWN:,} bits, got n={n} with count={count}; take fewer"
        )
    kind = protocol_of(None, examples=examples).examples
    return Samples(draw(chosen, n, seed, k, kind) for k in range(count))
