"""The sentence of every option and argument, once, under the name the Python door has for it.

Names, types and defaults are those of the door's functions: see `application.py`. What needs more
than a sentence is an `Option` or an `Argument`.
"""

from typing import Any

from typer import Argument, Option

from ithbit.families import FAMILIES, POSITIONS
from ithbit.theory.architecture import FORMAL_FAMILIES, TRAINED_FAMILIES


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


_WORKERS = "Processes; one per CPU core or per GPU unless given."
_STORE = "Folder of the run folders. Tables and figures also take the folder of an export."

OPTIONS: dict[str, Any] = {
    "task": "rhi (index last) or lhi (index first).",
    "family": f"{', '.join(FAMILIES)}, or a layer of your own: FILE.py:Factory, "
    "package.module:Factory, torch:lstm, fla:GLA …",
    "layers": "Number of layers.",
    "n": "Number of bits.",
    "width": "Width of the layers.",
    "heads": "Attention or state-space heads; ignored by gru.",
    "ff": "Hidden units of the feed-forward part; ignored by gru and mamba2.",
    "positions": f"{', '.join(map(_who_takes, POSITIONS))}.",
    "seeds": "Such as 0-4 or 0,3,8-9.",
    "seed": "Seed of the random choices.",
    "count": "How many inputs.",
    "lr": "Learning rate of the first epoch; 0.001 unless given.",
    "batch_size": "Examples a step; 256 unless given.",
    "max_epochs": "Epochs after which a run stops; 500 unless given.",
    "stop_when_solved": "Stop a run at its first perfect epoch.",
    "examples": "What training draws: uniform (the paper), mixed (half of it two densities with a "
    "cut), or blocks (half of it two densities in turn, with up to five cuts).",
    "device": "auto, cpu, cuda, or cuda:1 if there are several.",
    "kernels": "auto (the fused kernels where they apply), on (or an error) or off.",
    "compile": "On a CPU: auto (compiled code where it pays), on (or an error) or off.",
    "workers": _WORKERS,
    "store": Option("--store", envvar="ITHBIT_STORE", help=_STORE),
    "retry_failed": "Train runs again that are recorded as failed.",
    "tensorboard": "Also write every epoch's numbers into this folder for TensorBoard.",
    "dry_run": "List the runs, what is done and how long it may take.",
    "on": "local (this machine) or slurm (a cluster).",
    "slurm": "An option for sbatch, such as partition=gpu; repeatable.",
    "slurm_profile": "A TOML file of options for sbatch.",
    "runs_per_task": "Runs of one shape in a Slurm task; a stack unless given.",
    "detach": "On Slurm: submit what is missing and leave.",
    "cancel": "On Slurm: end the sweep's jobs; runs keep their state.",
    "source": "The store to take runs from.",
    "format": "parquet or csv.",
    "show": "ours, published or both; published needs no store.",
    "settings": "Which runs count: 'any', unlike ones apart, or 'paper': those of the paper's "
    "sizes and protocol alone, stopped when first perfect or not.",
    "out": "Write to this file or folder.",
    "alpha": "Accepted chance that a faithful reproduction is called different.",
    "variant": "Another construction: cosine (rhi softmax), heavy (rhi linear-full), "
    "time-invariant (lhi ssm), pair (lhi rnn).",
    "file": "A certificate: of `ithbit certify … -o FILE`, or a run's proof.json.",
    "index": "Which bit is asked for, counted from 1.",
    "model": "formal: the layers the paper defines; trained: those it trains.",
    "feature": "Formal linear attention: the kernel ELU+1 or ReLU+1.",
    "transition": "Formal SSM: A(x), B(x) affine in x, or A constant and B linear.",
    "activation": "Trained attention: exact erf GELU or ReLU in its feed-forward.",
    "state": "Mamba2: state size per channel.",
    "conv": "Mamba2: width of the causal convolution.",
    "position": "Softmax: the token k that is computed.",
    "all": "Show every cell.",
    "solved_only": "With --all: leave out runs that did not solve.",
    "again": "With --all: try those again that have a record.",
    "budget": "Inputs to evaluate for each run; all of them if they are no more, and always up to "
    "n = 16 (1,048,576), on a GPU up to n = 22.",
    "layer": "PATH.py:Factory, package.module:Factory, or a ready layer: torch:lstm, torch:rnn, "
    "torch:gru, torch:transformer-encoder-layer, torch:transformer-encoder-layer-causal, or on a "
    "GPU fla:Class (GLA, DeltaNet, GatedDeltaNet, RWKV7, RetNet, HGRN2, …).",
    "rank_n": "Measure the causal rank for k up to this, and up to four times that while it grows.",
    "minutes": "Leave what is not done after so many minutes, and report it; 4.5 with "
    "--stop-when-solved unless given, else no limit.",
    "train": "Causality, rank and bound alone, in seconds.",
    "train_families": "Train the six families where the store lacks them; slow.",
    "exhaustive": "Also write all n·2^n inputs, for n up to 16.",
    "predictions": ".npz with an array per set, or .csv/.parquet: see the README.",
    "data": "Folder that `ithbit data` wrote.",
}

# Where a name means something else than above.
SWEEP = {
    "name": "paper, positions, longer, smoke, demo, or a .toml file.",
    "task": "Keep this task; repeatable.",
    "family": "Keep this family; repeatable.",
    "layers": "Keep this depth; repeatable.",
    "n": "Keep this length; repeatable.",
    "seeds": "Instead of the sweep's own, such as 0-19.",
    "max_epochs": "Instead of the sweep's own.",
    "workers": f"{_WORKERS} On Slurm: tasks of an array at once.",
}
STATUS = SWEEP | {"name": "A sweep, to see what of it is missing."}
PLOT = {
    "name": "successes, accuracy, epochs, positions, length or curves.",
    "out": "File; its ending, .png, .svg or .pdf, is the format. NAME.png unless given.",
    "task": "For curves: rhi or lhi.",
    "family": "For curves: the family, as in `ithbit export`.",
    "layers": "For curves: the depth.",
    "n": "For curves: the length.",
    "positions": "For curves: the encoding.",
}
TABLE = {
    "name": "main, accuracy, positions, cost, length-by-n or length-by-family.",
    "format": "text, markdown, csv or latex (booktabs).",
}
PROBE = {
    "n": "Length; repeatable.",
    "layers": "Depth; repeatable.",
    "out": "Also write the report as an HTML page.",
}
CAPACITY = {
    "width": "Widths, such as 4,8,16.",
    "layers": "Numbers of layers, such as 1,2.",
    "lr": "Learning rates of the first epoch; the best counts.",
    "need": "Seeds that must succeed and stand, at one learning rate.",
    "factor": "How far apart a solved and a failed length may be at last.",
    "start": "The length to begin with.",
    "most_n": "The longest length to try.",
    "max_epochs": "Epochs after which a run stops; 200 unless given.",
    "examples": "What training draws: mixed unless given, or uniform.",
    "minutes": "Leave the search after so many minutes.",
    "dry_run": "Only report where the search stands.",
    "out": "Also write the capacity card, an HTML page.",
}
_RUN = "folders, or names or ids of runs in the store."
VERIFY = {
    "runs": Argument(metavar="RUN", help=f"Run {_RUN}"),
    "all": "All finished runs of the store without a record.",
    "count": "Go on after the first wrong answer and count them all.",
    "prove": "Also seek a proof that no input is answered wrong.",
    "seconds": "With --prove: the time for the proof of one run.",
}
EXPLORE = {
    "runs": Argument(metavar="RUN", help=f"A run, or two of one task and length: {_RUN}"),
    "construction": "Leave out the construction beside the run.",
}
_OUTPUT = ("--output", "--out", "-o")
CONSTRUCTION = {
    "family": _formal_or_trained(),
    "layers": "With --model trained: Number of layers; as few as do it unless given.",
    "bits": "The bit string, for instance 1011.",
    "out": Option(*_OUTPUT, help="Also write the certificate, weights included."),
}
_AS_RUN = "With --model trained: also write the weights as a run into this store."
CONSTRUCT = CONSTRUCTION | {"out": Option(*_OUTPUT, help=_AS_RUN)}
THEORY = {
    "family": _formal_or_trained(),
    "heads": "Attention heads, or heads of Mamba2; must divide the width. 1 formal and 2 trained "
    "unless given. Ignored by rnn, ssm, gru.",
    "ff": "Hidden units of the MLP or feed-forward part; 0 makes the formal MLPs affine. Ignored "
    "by gru, mamba2.",
    "n": "Report what holds at this n.",
    "all": "Show every route, tightest first.",
    "bits": "Bits per number of the state, for --all.",
}
COMPLEXITY = THEORY | {"family": _formal_or_trained(causal=True)}
VERDICT = {
    "family": _formal_or_trained(),
    "layers": "Number of layers, 1 unless given; not for the table.",
    "ff": "Hidden units of the MLPs; 0 makes them affine.",
}
SCORE = {"name": "What to call the model."}
DEMO = {"page": Option("--report", help="Where to write the report page.")}
_JSON = "Write JSON to a file in an existing folder; - for stdout."
BENCH = {
    "n": "Number of bits; repeatable. 64 unless given.",
    "seeds": "Seeds in a stack; repeatable. 5 unless given.",
    "device": "auto, cpu or cuda.",
    "steps": "Optimiser steps timed at a time.",
    "repeats": "Repetitions; the median counts.",
    "quick": "Three steps, once: rough, for a CPU.",
    "read": "Print the table of an earlier result; time nothing.",
    "json": Option("--json", metavar="FILE", help=_JSON),
}
