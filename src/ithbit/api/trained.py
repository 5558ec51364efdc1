"""Trained models: verify a run, load it as an `nn.Module`, explore it on an interactive page; for a
model trained elsewhere, inputs to answer and a score for the answers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ithbit.api.arguments import Seeds, as_list, at_least_one, checked, seeds_of
from ithbit.api.verifications import Verifications as Verifications
from ithbit.api.verifications import VerifiedRun as Verified
from ithbit.errors import IthbitError, SpecError, StoreError, as_int, number
from ithbit.families import task_named
from ithbit.spec import ModelSpec, Protocol, RunSpec, cell
from ithbit.store.reading import is_copy, load_verification, run_folders
from ithbit.store.records import Failure, Result
from ithbit.store.schema import UnreadableError
from ithbit.store.status import need_store

if TYPE_CHECKING:
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
    elif Path(run).is_dir():
        return Path(run).resolve()
    need_store(store)
    found = [
        folder
        for name, folder in run_folders(store)
        if str(run) in (name, folder) or folder.endswith(f"-{run}")
    ]
    if len(found) > 1:  # a copy under another name does not count
        found = [folder for folder in found if not is_copy(f"{store}/{folder}")] or found
    if len(found) != 1:
        many = f"several runs are called {str(run)!r}: {', '.join(found)}; give the folder"
        none = f"there is no run {str(run)!r} in {store}; `ithbit status --json` lists the runs"
        raise StoreError(many if found else none)
    return store / found[0]


@checked
def verify(
    runs: Run | Iterable[Run] | None = None,
    *,
    all: bool = False,
    solved_only: bool = False,
    again: bool = False,
    budget: int = 1 << 20,
    count: bool = False,
    prove: bool = False,
    seconds: float = 60.0,
    seed: int = 0,
    device: str = "auto",
    layer: str | Iterable[str] | None = None,
    store: str | Path = "runs",
    watch: Callable[[Verified], None] | None = None,
    progress: bool = False,
) -> Verifications:
    """Try to refute trained models: plain strings, then every input where feasible, else a search.

    It stops at the first wrong answer, unless all are to be counted (`count`). The result is saved
    as verification.json in the run folder, which tables, figures and the report read. It is an
    observation of the final weights in float32, not a certificate. `all` verifies every finished
    run of the store that has no record with this budget yet.

    A run that is named, or with `again` every run, is tried again whatever is on record. What is
    known of the same weights is kept: a wrong input on record is tried first, *right on all inputs*
    outlasts a search, and the least margin and the proof stay. If nothing new is found, the file is
    not written. A record of other weights does not count.

    With `prove`, bounds over all inputs are sought for a run that is not refuted, for at most
    `seconds`, in real arithmetic on the stored weights. If they are above 0, and a second
    implementation confirms the certificate, the run is *proved on all inputs*; for two layers there
    is none, and the run is *bounded (unchecked)*. The certificate is written beside the record as
    proof.json. One that is there is checked again for a run that is named, or with `again`; if it
    holds, nothing is searched. A search that runs out of time is saved, and continues when given
    more.

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
    named = as_list(runs)
    if bool(named) == all:
        raise SpecError("name runs to verify, or give --all for all finished runs of the store")
    if as_int("budget", budget) < 1:
        raise SpecError(f"the budget is a number of inputs from 1, got {budget}")
    if not number("seconds", seconds) > 0:
        raise SpecError(f"seconds must be more than 0, got {seconds}")
    if not 0 <= as_int("seed", seed) < 1 << 63:
        raise SpecError(f"the seed is a number from 0 and below 2^63, got {seed}")
    from ithbit.api.progress import bars
    from ithbit.engine.device import choose_device
    from ithbit.models.layer_source import find_layer
    from ithbit.store.folder import keep_verification
    from ithbit.verification.run_verification import (
        finished_folders,
        is_enough,
        may_be_proved,
        read_result,
        verified,
        with_stored,
    )

    for each in as_list(layer):
        find_layer(each)
    store, chosen = Path(store), choose_device(device)
    folders = finished_folders(store) if all else [folder_of(run, store) for run in named]
    again = again or not all
    done = Verifications()
    with bars(progress) as shown:
        task = shown.add_task("verifying", total=len(folders))

        def say(now: Any) -> None:
            shown.update(task, description=f"verifying: {now.sentence()}")

        def one_by_one(numbers: Sequence[int]) -> Iterator[int]:
            for k, number in enumerate(numbers, 1):
                said = f"verifying: checking the certificate, {k:,} of {len(numbers):,}"
                shown.update(task, description=said)
                yield number

        for folder in shown.track(folders, task_id=task):
            shown.update(task, description="verifying")
            try:
                result = read_result(folder)
                solved, final = (result[name] == 1.0 for name in ("max_accuracy", "final_accuracy"))
                if all and solved_only and not solved:
                    continue
                damage = ""
                try:
                    before = record = load_verification(str(folder))
                except UnreadableError as reason:
                    before = record = None
                    damage = f"{folder}: {reason}; what it says does not count"
                found = None
                if record is None or again or not is_enough(record, budget, count):
                    record = verified(folder, chosen, budget, seed, count)
                    found = record.found
                tries_are_new = record != before
                # If the record is damaged, a proof beside it still counts.
                time_left = seconds if prove else 0.0
                proof = found.proof if found is not None and found.verdict == "refuted" else None
                if (
                    (damage and (folder / "proof.json").exists())
                    or (proof is not None and proof.verdict is not None)  # which may be forged
                    or (prove and (again or may_be_proved(record, seconds)))
                ):
                    from ithbit.verification.proofs.run_proof import prove_run

                    say_so = done.notes.append
                    record = prove_run(folder, record, time_left, say, one_by_one, say_so)
                    found = record.found
                if record != before:
                    record = with_stored(folder, before, record)
                    found = record.found
                is_new = record != before
                proof_is_new = before is None or record.found.proof != before.found.proof
                if is_new:
                    try:
                        aside = keep_verification(folder, record)
                        damage += f"; it is kept as {aside.name}" if aside and damage else ""
                    except StoreError as error:  # a read-only store
                        done.not_kept.append(str(error))
                if damage:
                    done.notes.append(damage)
                where, new = folder.absolute(), (tries_are_new, proof_is_new)
                done.append(Verified(record.to_json(), solved, final, found, is_new, where, *new))
            except IthbitError as error:
                if not all:
                    raise
                # One bad folder must not stop the others, and its message must name it.
                which = "" if folder.name in str(error) else f"{folder}: "
                done.set_aside.append(f"{which}{error}")
            else:
                if watch is not None:
                    watch(done[-1])
    return done


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
    same task and length is shown beside the first, and so is the construction for the first run's
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
