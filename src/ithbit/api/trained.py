"""Trained models: verify a run, load it as an `nn.Module`, explore it on an interactive page; for a
model trained elsewhere, inputs to answer and a score for the answers."""

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ithbit.api.arguments import Seeds, as_list, at_least_one, checked, renamed, seeds_of
from ithbit.api.verifications import Verifications as Verifications
from ithbit.api.verifications import VerifiedRun as Verified
from ithbit.errors import SpecError, StoreError, as_int, number
from ithbit.families import task_named
from ithbit.spec import ModelSpec, Protocol, RunSpec, cell, run_from_json
from ithbit.store.packed import as_named, opened, packed_part
from ithbit.store.reading import is_copy, read_run, run_folders
from ithbit.store.records import Failure, Result
from ithbit.store.schema import UnreadableError
from ithbit.store.status import need_store

if TYPE_CHECKING:
    from ithbit.api.verify_workers import FolderOutcome
    from ithbit.external_models import Score
    from ithbit.loading.model import Model
    from ithbit.theory.solution import Solution, TrainedSolution


# A folder, a name or an id, a spec, an outcome, a verification.
Run = str | Path | RunSpec | Result | Failure | Verified
_DEFAULT = Path("runs")


def folder_of(run: Run, store: Path) -> Path:
    """The folder of a run: given as a path, a name, an id, a spec, an outcome or a verification.

    An outcome that `train` or `sweep` returned is found in its own store, unless another store than
    the default is given.
    """
    if isinstance(run, Verified) and run.path is not None:
        return run.path
    if isinstance(run, Result | Failure):
        store = run.store if run.store is not None and store == _DEFAULT else store
        run = run.spec
    if isinstance(run, RunSpec):
        run = run.folder
    elif not isinstance(run, str | Path):
        several = isinstance(run, list | tuple)
        raise SpecError(
            "a run is a folder, a name, an id, a RunSpec, or what `train`, `sweep` or `verify` "
            f"returned for it, got {type(run).__name__}"
            + ("; choose one of its elements, as in runs[0]" if several else "")
        )
    elif opened(run).is_dir():
        return opened(run).resolve()
    elif (packed := packed_part(Path(run))) is not None:  # STORE.zip/NAME
        store, run = packed, str(Path(run).relative_to(packed))
    store = opened(store)
    need_store(store)
    matches = [
        folder
        for name, folder in run_folders(store)
        if str(run) in (name, folder) or folder.endswith(f"-{run}")
    ]
    if len(matches) > 1:  # a copy under another name does not count
        matches = [folder for folder in matches if not is_copy(f"{store}/{folder}")] or matches
    if len(matches) != 1:
        many = f"several runs are called {str(run)!r}: {', '.join(matches)}; give the folder"
        place = as_named(Path(store))
        command = "ithbit status --json" + ("" if place == _DEFAULT else f" --store {place}")
        none = f"there is no run {str(run)!r} in {place}; `{command}` lists the runs"
        raise StoreError(many if matches else none)
    return store / matches[0]


@renamed(all="all_runs")
@checked
def verify(
    runs: Run | Iterable[Run] | None = None,
    *,
    all_runs: bool = False,
    solved_only: bool = False,
    again: bool = False,
    budget: int = 1 << 20,
    count: bool = False,
    prove: bool = False,
    seconds: float = 60.0,
    seed: int = 0,
    device: str = "auto",
    workers: int | None = None,
    layer: str | Iterable[str] | None = None,
    store: str | Path = "runs",
    watch: Callable[[Verified], None] | None = None,
    progress: bool = False,
) -> Verifications:
    """Try to refute trained models: plain strings, then every input where feasible, else a search.

    It stops at the first wrong answer, unless all are to be counted (`count`). The result is saved
    as verification.json in the run folder, which tables, figures and the report read. It is an
    observation of the final weights in float32, not a certificate. `all_runs` verifies every
    finished run of the store that has no record with this budget yet.

    A run that is named, or with `again` every run, is tried again whatever is on record. What is
    known of the same weights is kept: a wrong input on record is tried first, *right on all inputs*
    outlasts a search, and the least margin and the proof stay. If nothing new is found, the file is
    not written. A record of other weights does not count.

    With `prove`, bounds over all inputs are sought for a run that is not refuted, for at most
    `seconds`, in real arithmetic on the stored weights. If they are above 0, and a second
    implementation confirms the certificate, the run is *proved on all inputs*; where it does not
    confirm the bounds of two layers, the run is *bounded (unchecked)*. Proofs of several runs are
    sought side by side, one per CPU core, unless `workers` says how many. The certificate is
    written next to the record as proof.json. One that is there is checked again for a run that is
    named, or with `again`; if it holds, nothing is searched. A search that runs out of time is
    saved, and continues when given more.

    A record that is damaged is reported and kept under another name; the run is then tried again,
    and its certificate, if it has one, is checked again.

    Runs of your own layers need their code. It is loaded from where it was when they were trained,
    if that is no place inside a store; `layer` names it where it is now (`layers.py:Mine`).

    >>> import tempfile, ithbit
    >>> tiny = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    >>> with tempfile.TemporaryDirectory() as store:
    ...     runs = ithbit.train("lhi", "gru", n=2, seeds=[0], protocol=tiny, store=store, workers=1)
    ...     found = verify(runs, store=store, device="cpu")
    >>> found[0].record["n_evaluated"], found[0].solved
    (8, False)
    """
    run_names = as_list(runs)
    if bool(run_names) == all_runs:
        raise SpecError("name runs to verify, or give --all for all finished runs of the store")
    if as_int("budget", budget) < 1:
        raise SpecError(f"the budget is a number of inputs from 1, got {budget}")
    if not number("seconds", seconds) > 0:
        raise SpecError(f"seconds must be more than 0, got {seconds}")
    if not 0 <= as_int("seed", seed) < 1 << 63:
        raise SpecError(f"the seed is a number from 0 and below 2^63, got {seed}")
    from ithbit.api.verify_progress import verify_progress
    from ithbit.api.verify_workers import verify_folder, verify_side_by_side
    from ithbit.engine.device import choose_device
    from ithbit.models.layer_source import find_layer
    from ithbit.verification.stored_run import finished_folders
    from ithbit.verification.stored_verification import VerifyOptions

    for each in as_list(layer):
        find_layer(each)
    store_path, store, chosen_device = Path(store), opened(store), choose_device(device)
    folders = finished_folders(store) if all_runs else [folder_of(run, store) for run in run_names]
    options = VerifyOptions(
        chosen_device, budget, seed, count, again or not all_runs, prove, seconds
    )
    verifications = Verifications()
    processes = min(_workers(workers, prove, chosen_device.is_cuda), len(folders))
    if processes > 1 and _known_only_here(folders):
        processes = 1
    only, layers = all_runs and solved_only, as_list(layer)
    with verify_progress(progress, folders) as display:
        if processes > 1:
            each = verify_side_by_side(folders, options, only, processes, layers, display.proof)
            outcomes = display.steps(each)
        else:
            outcomes = (
                (folder, verify_folder(folder, options, only, display.search, display.certificate))
                for folder in display.folders()
            )
        with closing(outcomes):
            for folder, outcome in outcomes:
                _add(folder, outcome, all_runs, verifications, watch)
    order = {folder.absolute(): k for k, folder in enumerate(folders)}
    verifications.sort(key=lambda each: order.get(each.path or Path(), 0))
    places = [store_path, *(Path(each) for each in run_names if isinstance(each, str | Path))]
    packed = [part for place in places if (part := packed_part(place))]
    if packed and any(each.is_new for each in verifications):
        verifications.notes.append(
            f"{packed[0]} is a packed store: what was found is shown, not saved"
        )
    return verifications


def _known_only_here(folders: list[Path]) -> bool:
    """Whether a layer or family of these runs is known to this process alone."""
    from ithbit.models.layer_source import is_session_only

    runs = []
    for folder in folders:
        with suppress(UnreadableError, SpecError, KeyError, TypeError):
            runs.append(run_from_json(read_run(str(folder))[1]["spec"]))
    return is_session_only(runs)


def _workers(workers: int | None, prove: bool, is_cuda: bool) -> int:
    """How many processes verify runs: one, but for proofs one per core."""
    if workers is not None:
        at_least_one(workers=as_int("workers", workers))
        return workers
    from ithbit.engine.device import usable_cores

    return usable_cores() if prove and not is_cuda else 1


def _add(
    folder: Path,
    result: "FolderOutcome",
    all_runs: bool,
    verifications: Verifications,
    watch: Callable[[Verified], None] | None,
) -> None:
    """Add what came of a folder to the verifications, if its run was wanted."""
    verifications.notes += result.notes
    if result.error is not None:
        if not all_runs:
            raise result.error
        # One bad folder must not stop the others, and its message must name it.
        which = "" if folder.name in str(result.error) else f"{folder}: "
        verifications.set_aside.append(f"{which}{result.error}")
        return
    outcome = result.outcome
    if outcome is None:
        return
    if outcome.not_written:
        verifications.not_kept.append(outcome.not_written)
    one = Verified(
        outcome.record.to_json(),
        result.solved,
        result.solved_at_end,
        outcome.record.found if outcome.worked else None,
        outcome.is_new,
        folder.absolute(),
        outcome.tries_are_new,
        outcome.proof_is_new,
    )
    verifications.append(one)
    if watch is not None:
        watch(one)


@checked
def load(
    run: "Run | Solution | TrainedSolution",
    *,
    store: str | Path = "runs",
    dtype: str = "float32",
    device: str = "cpu",
    library: bool = True,
    layer: str | None = None,
) -> "Model":
    """Load a trained run, or a construction, as an ordinary `torch.nn.Module`.

    A run is built from the library the paper names: Hugging Face's BERT (RoFormer for rotary
    positions), `nn.GRU`, plain linear attention, Mamba2, or the user's own class. Where the library
    is not installed, or with `library=False`, it is plain PyTorch with the same answers. A run of
    your own layer needs its code where it was when it was trained, or `layer` to name it. A
    construction is loaded as its formal layers, always in float64; explicit weights of trained
    blocks are loaded like a run.

    What `train`, `sweep` or `verify` returned for a run is found in its own store, unless you name
    another one.

    Call the model on bits and an index, one or a batch, to get the logit of answer 1. If it has
    attention, `attention(bits, index)` gives the maps: layer, head, query, key.

    >>> import ithbit
    >>> model = load(ithbit.construct("rhi", "softmax-full", n=4))
    >>> (model("1011", [1, 2, 3, 4]) > 0).tolist()
    [True, False, True, True]
    >>> model.attention("1011", 3).shape
    torch.Size([1, 1, 5, 5])
    """
    from ithbit.loading.model import load_model
    from ithbit.models.layer_source import find_layer
    from ithbit.theory.solution import Solution, TrainedSolution

    source = run if isinstance(run, Solution | TrainedSolution) else folder_of(run, Path(store))
    if layer is not None:
        find_layer(layer)
    return load_model(source, dtype, device, library)


@checked
def explore(
    runs: Run | Iterable[Run],
    *,
    construction: bool = True,
    out: str | Path = "explore.html",
    store: str | Path = "runs",
) -> Path:
    """Write one self-contained HTML page that runs a trained model, for anyone to try.

    Click bits and the index to see what each token holds, where each head looks or how the state
    changes, the logit and its margin; a button searches for a wrong answer. A second run of the
    same task and length is shown next to the first, and so is the construction for the first run's
    blocks, where there is one. A refuted run opens on its counterexample. The page opens from disk
    and needs no network.

    >>> import tempfile, ithbit
    >>> tiny = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    >>> with tempfile.TemporaryDirectory() as store:
    ...     runs = ithbit.train("lhi", "gru", n=2, seeds=[0], protocol=tiny, store=store, workers=1)
    ...     page = explore(runs, store=store, out=f"{store}/page.html")
    ...     page.name, page.stat().st_size < 1_000_000
    ('page.html', True)
    """
    from ithbit.explorer.page import gather, write_page

    folders = [folder_of(run, Path(store)) for run in as_list(runs)]
    return write_page(gather(folders, construction), Path(out))


@checked
def data(
    task: str,
    *,
    n: int = 8,
    out: str | Path = "data",
    seeds: Seeds = "0-4",
    exhaustive: bool = False,
) -> list[Path]:
    """Write held-out and adversarial inputs as Parquet and NPZ, with a README.

    Have a model trained elsewhere answer them; `score` then gives the same success table as for our
    own runs. The held-out sets are those on which runs with these seeds are judged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in data("rhi", n=4, out=folder, seeds=[0])][:2]
    ['held_out.parquet', 'held_out.npz']
    """
    n = as_int("n", n)
    at_least_one(n=n)
    # Made as runs are, so that seeds no run could have are refused.
    runs = cell(ModelSpec(task_named(task), "gru", n), Protocol(), seeds_of(seeds))
    from ithbit.external_models import write_sets

    return write_sets(task, n, Path(out), [run.seed for run in runs], exhaustive)


@checked
def score(predictions: str | Path, *, data: str | Path = "data", name: str = "yours") -> "Score":
    """Score a model's answers to the inputs of `data`.

    A held-out set is solved if all of its samples are answered correctly: the paper's criterion, an
    observation on samples. There is one set per seed, as for our own runs; one model that solves
    five sets is still one model. Answers to all inputs, if given, are stronger evidence.

    >>> import tempfile, numpy, ithbit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = ithbit.data("rhi", n=4, out=folder, seeds=[0])
    ...     inputs = numpy.load(f"{folder}/held_out.npz")
    ...     right = inputs["bits"][numpy.arange(2000), inputs["index"] - 1]
    ...     numpy.savez(f"{folder}/answers.npz", held_out=right)
    ...     score(f"{folder}/answers.npz", data=folder).solved
    1
    """
    from ithbit.external_models import score as score_file

    return score_file(Path(predictions), Path(data), name)
