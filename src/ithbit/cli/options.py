"""Every option and argument of the command line, once, under the name the Python door has for it.

`command` makes a command of a function of the door: names and defaults are the function's, the
options are looked up here.
"""

import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer import Argument, Option

from ithbit.errors import IthbitError
from ithbit.families import FAMILIES, POSITIONS
from ithbit.shown import Shown, show
from ithbit.theory.architecture import (
    FORMAL_FAMILIES,
    TRAINED_FAMILIES,
    Activation,
    Feature,
    Model,
    Transition,
)


def option(help: str, *names: str, kind: Any = str, **more: Any) -> Any:
    """The annotation of an option, `--name` unless it has other names."""
    return Annotated[kind, Option(*names, help=help, **more)]


def argument(help: str, kind: Any = str, **more: Any) -> Any:
    """The annotation of an argument."""
    return Annotated[kind, Argument(help=help, **more)]


def flag(help: str, *names: str, **more: Any) -> Any:
    """The annotation of a flag that turns something on, or with " /--no-name" off."""
    return option(help, *names, kind=bool, **more)


def _formal_or_trained(causal: bool = False) -> str:
    formal, trained = (
        ", ".join(name for name in names if not (causal and name.endswith("-full")))
        for names in (FORMAL_FAMILIES, TRAINED_FAMILIES)
    )
    return f"Formal: {formal}. With --model trained: {trained}."


def _who_takes(positions: str) -> str:
    """An encoding of positions, and which kinds of family take it if not all do."""
    takers = [family for family in FAMILIES.values() if family.takes(positions)]
    kinds = " and ".join(dict.fromkeys(family.kind for family in takers))
    return positions if len(takers) == len(FAMILIES) else f"{positions} ({kinds} alone)"


AsJson = Annotated[bool, Option("--json", help="Print JSON on standard output.")]
STORE = "Folder of the run folders. Tables and figures also take the folder of an export."
Store = Annotated[Path, Option("--store", envvar="ITHBIT_STORE", help=STORE)]
_L, _N, _OUT = ("--layers", "-L"), ("--n", "-n"), ("--out", "-o")
_TASK = "rhi (index last) or lhi (index first)."
_WORKERS = "Processes; one per CPU core or per GPU unless given."

OPTIONS: dict[str, Any] = {
    "task": argument(_TASK),
    "family": argument(
        f"{', '.join(FAMILIES)}, or a layer of your own: FILE.py:Factory, package.module:Factory, "
        "torch:lstm, fla:GLA …"
    ),
    "layers": option("Number of layers.", *_L, kind=int),
    "n": option("Number of bits.", *_N, kind=int),
    "width": option("Width of the layers.", "--width", "-d", kind=int),
    "heads": option("Attention or state-space heads; ignored by gru.", kind=int),
    "ff": option("Hidden units of the feed-forward part; ignored by gru and mamba2.", kind=int),
    "positions": option(f"{', '.join(map(_who_takes, POSITIONS))}."),
    "seeds": option("Such as 0-4 or 0,3,8-9."),
    "seed": option("Seed of the random choices.", kind=int),
    "count": option("How many inputs.", kind=int),
    "lr": option("Learning rate of the first epoch; 0.001 unless given.", kind=float | None),
    "batch_size": option("Examples a step; 256 unless given.", kind=int | None),
    "max_epochs": option("Epochs after which a run stops; 500 unless given.", kind=int | None),
    "stop_when_solved": flag("Stop a run at its first perfect epoch.", "--stop-when-solved"),
    "examples": option(
        "What training draws: uniform (the paper), mixed (half of it two densities with a cut), or "
        "blocks (half of it two densities in turn, with up to five cuts).",
        kind=str | None,
    ),
    "device": option("auto, cpu, cuda, or cuda:1 if there are several."),
    "kernels": option("auto (the fused kernels where they apply), on (or an error) or off."),
    "compile": option("On a CPU: auto (compiled code where it pays), on (or an error) or off."),
    "workers": option(_WORKERS, kind=int | None),
    "store": Store,
    "retry_failed": flag("Train runs again that are recorded as failed.", "--retry-failed"),
    "tensorboard": option(
        "Also write every epoch's numbers into this folder for TensorBoard.", kind=Path | None
    ),
    "dry_run": flag("List the runs, what is done and how long it may take.", "--dry-run"),
    "on": option("local (this machine) or slurm (a cluster)."),
    "slurm": option(
        "An option for sbatch, such as partition=gpu; repeatable.", kind=list[str] | None
    ),
    "slurm_profile": option("A TOML file of options for sbatch.", kind=Path | None),
    "runs_per_task": option(
        "Runs of one shape in a Slurm task; a stack unless given.", kind=int | None
    ),
    "detach": flag("On Slurm: submit what is missing and leave.", "--detach"),
    "cancel": flag("On Slurm: end the sweep's jobs; runs keep their state.", "--cancel"),
    "source": argument("The store to take runs from.", Path),
    "format": option("parquet or csv.", "--format", "-f"),
    "show": option("ours, published or both; published needs no store."),
    "settings": option(
        "Which runs count: 'any', unlike ones apart, or 'paper': those of the paper's sizes and "
        "protocol alone, stopped when first perfect or not."
    ),
    "out": option("Write to this file or folder.", *_OUT, kind=Path | None),
    "alpha": option(
        "Accepted chance that a faithful reproduction is called different.", kind=float
    ),
    "variant": option(
        "Another construction: cosine (rhi softmax), heavy (rhi linear-full), time-invariant (lhi "
        "ssm), pair (lhi rnn).",
        kind=str | None,
    ),
    "file": argument("A certificate: of `ithbit certify … -o FILE`, or a run's proof.json.", Path),
    "index": option("Which bit is asked for, counted from 1.", kind=int),
    "model": option("formal: the layers the paper defines; trained: those it trains.", kind=Model),
    "feature": option("Formal linear attention: the kernel ELU+1 or ReLU+1.", kind=Feature),
    "transition": option(
        "Formal SSM: A(x), B(x) affine in x, or A constant and B linear.", kind=Transition
    ),
    "activation": option(
        "Trained attention: exact erf GELU or ReLU in its feed-forward.", kind=Activation
    ),
    "state": option("Mamba2: state size per channel.", kind=int),
    "conv": option("Mamba2: width of the causal convolution.", kind=int),
    "position": option("Softmax: the token k that is computed.", "--position", "-k", kind=int),
    "all": flag("Show every cell.", "--all"),
    "solved_only": flag("With --all: leave out runs that did not solve.", "--solved-only"),
    "again": flag("With --all: try those again that have a record.", "--again"),
    "budget": option(
        "Inputs to evaluate for each run; all of them if they are no more, and always up to n = 16 "
        "(1,048,576), on a GPU up to n = 22.",
        kind=int,
    ),
    "layer": argument(
        "PATH.py:Factory, package.module:Factory, or a ready layer: torch:lstm, torch:rnn, "
        "torch:gru, torch:transformer-encoder-layer, torch:transformer-encoder-layer-causal, or on "
        "a GPU fla:Class (GLA, DeltaNet, GatedDeltaNet, RWKV7, RetNet, HGRN2, …)."
    ),
    "rank_n": option(
        "Measure the causal rank for k up to this, and up to four times that while it grows.",
        kind=int,
    ),
    "minutes": option(
        "Leave what is not done after so many minutes, and report it; 4.5 with --stop-when-solved "
        "unless given, else no limit.",
        kind=float | None,
    ),
    "train": flag(
        "Causality, rank and bound alone, in seconds.", " /--no-train", show_default=False
    ),
    "train_families": flag(
        "Train the six families where the store lacks them; slow.", "--train-families"
    ),
    "exhaustive": flag("Also write all n·2^n inputs, for n up to 16.", "--exhaustive"),
    "predictions": argument(".npz with an array per set, or .csv/.parquet: see the README.", Path),
    "data": option("Folder that `ithbit data` wrote.", "--data", kind=Path),
}

# Where a name means something else than above.
SWEEP = {
    "name": argument("paper, positions, longer, smoke, demo, or a .toml file."),
    "task": option("Keep this task; repeatable.", "--task", kind=list[str] | None),
    "family": option("Keep this family; repeatable.", "--family", kind=list[str] | None),
    "layers": option("Keep this depth; repeatable.", *_L, kind=list[int] | None),
    "n": option("Keep this length; repeatable.", *_N, kind=list[int] | None),
    "seeds": option("Instead of the sweep's own, such as 0-19.", kind=str | None),
    "max_epochs": option("Instead of the sweep's own.", kind=int | None),
    "workers": option(f"{_WORKERS} On Slurm: tasks of an array at once.", kind=int | None),
}
STATUS = SWEEP | {"name": argument("A sweep, to see what of it is missing.", str | None)}
PLOT = {
    "name": argument("successes, accuracy, epochs, positions, length or curves."),
    "out": option(
        "File; its ending, .png, .svg or .pdf, is the format. NAME.png unless given.",
        *_OUT,
        kind=Path | None,
    ),
    "task": option("For curves: rhi or lhi."),
    "family": option("For curves: the family, as in `ithbit export`."),
    "layers": option("For curves: the depth.", *_L, kind=int),
    "n": option("For curves: the length.", *_N, kind=int),
    "positions": option("For curves: the encoding."),
}
TABLE = {
    "name": argument("main, accuracy, positions, cost, length-by-n or length-by-family."),
    "format": option("text, markdown, csv or latex (booktabs).", "--format", "-f"),
}
PROBE = {
    "n": option("Length; repeatable.", *_N, kind=list[int] | None),
    "layers": option("Depth; repeatable.", *_L, kind=list[int] | None),
    "out": option("Also write the report as an HTML page.", *_OUT, kind=Path | None),
}
CAPACITY = {
    "width": option("Widths, such as 4,8,16.", "--width", "-d"),
    "layers": option("Numbers of layers, such as 1,2.", *_L),
    "lr": option("Learning rates of the first epoch; the best counts."),
    "need": option("Seeds that must succeed and stand, at one learning rate.", kind=int),
    "factor": option("How far apart a solved and a failed length may be at last.", kind=float),
    "start": option("The length to begin with.", kind=int),
    "most_n": option("The longest length to try.", "--most-n", kind=int),
    "max_epochs": option("Epochs after which a run stops; 200 unless given.", kind=int | None),
    "examples": option("What training draws: mixed unless given, or uniform.", kind=str | None),
    "minutes": option("Leave the search after so many minutes.", kind=float | None),
    "dry_run": flag("Only report where the search stands.", "--dry-run"),
    "out": option("Also write the capacity card, an HTML page.", *_OUT, kind=Path | None),
}
VERIFY = {
    "runs": argument(
        "Run folders, or names or ids of runs in the store.", list[str] | None, metavar="RUN"
    ),
    "all": flag("All finished runs of the store without a record.", "--all"),
    "count": flag("Go on after the first wrong answer and count them all.", "--count"),
    "prove": flag("Also seek a proof that no input is answered wrong.", "--prove"),
    "seconds": option("With --prove: the time for the proof of one run.", kind=float),
}
EXPLORE = {
    "runs": argument(
        "A run, or two of one task and length: folders, or names or ids of runs in the store.",
        list[str],
        metavar="RUN",
    ),
    "construction": flag(
        "Leave out the construction beside the run.", " /--no-construction", show_default=False
    ),
}
_LEAST = "Number of layers; as few as do it unless given."
CONSTRUCTION = {
    "family": argument(_formal_or_trained()),
    "layers": option(f"With --model trained: {_LEAST}", *_L, kind=int | None),
    "bits": option("The bit string, for instance 1011."),
    "out": option(
        "Also write the certificate, weights included.", "--output", *_OUT, kind=Path | None
    ),
}
CONSTRUCT = CONSTRUCTION | {
    "out": option(
        "With --model trained: also write the weights as a run into this store.",
        "--output",
        *_OUT,
        kind=Path | None,
    ),
}
THEORY = {
    "family": argument(_formal_or_trained()),
    "heads": option(
        "Attention heads, or heads of Mamba2; must divide the width. 1 formal and 2 trained unless "
        "given. Ignored by rnn, ssm, gru.",
        kind=int | None,
    ),
    "ff": option(
        "Hidden units of the MLP or feed-forward part; 0 makes the formal MLPs affine. Ignored by "
        "gru, mamba2.",
        kind=int,
    ),
    "n": option("Report what holds at this n.", *_N, kind=int | None),
    "all": flag("Show every route, tightest first.", "--all"),
    "bits": option("Bits per number of the state, for --all.", kind=int),
}
COMPLEXITY = THEORY | {"family": argument(_formal_or_trained(causal=True))}
VERDICT = {
    "task": argument(_TASK, str | None),
    "family": argument(_formal_or_trained(), str | None),
    "layers": option("Number of layers, 1 unless given; not for the table.", *_L, kind=int | None),
    "ff": option("Hidden units of the MLPs; 0 makes them affine.", kind=int),
}
SCORE = {"name": option("What to call the model.")}

Printer = Callable[..., None]
_EMPTY = inspect.Parameter.empty
# What a function of the door can do without, and a command cannot.
_REQUIRED = {("certify", "family"), ("certify", "n"), ("explain", "family")}


def command(
    app: typer.Typer, function: Callable[..., Any], own: Mapping[str, Any] = {}, **fixed: Any
) -> Callable[[Printer], Printer]:
    """Make a command of a function of the door; the decorated function prints what it returns.

    The command has an option for each parameter that `own` or `OPTIONS` has; `fixed` ones are given
    as they are, and the others are for Python alone. Parameters of the printer beside the result
    are options too, or the function's of that name. The help is the function's docstring up to its
    example, then the printer's.
    """
    known = OPTIONS | dict(own)
    options = {
        name: _option(parameter, known[name], (function.__name__, name) in _REQUIRED)
        for name, parameter in inspect.signature(function).parameters.items()
        if name in known and name not in fixed
    }

    def register(printer: Printer) -> Printer:
        hints = get_type_hints(printer, include_extras=True)
        printed = list(inspect.signature(printer).parameters.values())[1:]
        more = {each.name: _option(each, hints[each.name]) for each in printed}
        more = {name: option for name, option in more.items() if name not in options}

        def run(**given: Any) -> None:
            # An option that may be repeated and was not given is an empty list.
            named = {name: given[name] for name in options if given[name] != []}
            try:
                with redirect_stdout(sys.stderr):  # what a user's layer prints is no output
                    result = function(**named, **fixed)
            except IthbitError as error:
                if given.get("trace") and error.__cause__ is not None:
                    traceback.print_exception(error.__cause__)
                raise
            printer(result, **{each.name: given[each.name] for each in printed})

        both = (options | more).values()
        run.__signature__ = inspect.Signature(list(both))  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in both}
        run.__name__ = function.__name__
        run.__doc__ = _help(function, options, printer)
        app.command()(run)
        return printer

    return register


def _option(
    parameter: inspect.Parameter, annotation: Any, required: bool = False
) -> inspect.Parameter:
    default = _EMPTY if required else parameter.default
    if isinstance(default, int | tuple) and "list[" in str(annotation):
        default = list(default) if isinstance(default, tuple) else [default]
    kind = inspect.Parameter.KEYWORD_ONLY
    return parameter.replace(kind=kind, annotation=annotation, default=default)


def _help(function: Callable[..., Any], options: Mapping[str, Any], printer: Printer) -> str:
    """The prose of both docstrings; the function's parameters as the command line writes them."""
    prose = re.split(r"\n\n(?:>>>|In Python)", inspect.cleandoc(function.__doc__ or ""))[0]
    for name in options:
        prose = prose.replace(f"`{name}`", f"--{name.replace('_', '-')}")
    more = (
        inspect.cleandoc(printer.__doc__ or "")
        if printer not in (print_result, print_or_json)
        else ""
    )
    return "\n\n".join(filter(None, (prose, more)))


def print_result(result: Any) -> None:
    """A result as people read it; of files their paths."""
    if isinstance(result, Shown):
        show(result)
    else:
        print("\n".join(map(str, result)) if isinstance(result, list) else result)


def print_or_json(result: Any, as_json: AsJson = False) -> None:
    """A result as people read it, or as JSON."""
    if as_json:
        print(json.dumps(result.to_json(), indent=1, ensure_ascii=False))
    else:
        show(result)
