"""The help of every option and argument, written once, under its name in the Python API.

Names, types and defaults are those of the API functions: see `application.py`. Whatever needs more
than a help text is an `Option` or an `Argument`.
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
    """An encoding of positions, with the kinds of family that take it if not all do."""
    takers = [family for family in FAMILIES.values() if family.takes(positions)]
    kinds = " and ".join(dict.fromkeys(family.kind for family in takers))
    return positions if len(takers) == len(FAMILIES) else f"{positions} ({kinds} only)"


_WORKERS = "Processes; by default one per CPU core or per GPU."
_STORE = (
    "Folder with the run folders. Whatever only reads also takes a packed store, STORE.zip; tables "
    "and figures also the folder of an export."
)

OPTIONS: dict[str, Any] = {
    "task": "rhi (index last) or lhi (index first).",
    "family": f"{', '.join(FAMILIES)}, or your own layer: FILE.py:Factory, "
    "package.module:Factory, torch:lstm, fla:GLA …",
    "layers": "Number of layers.",
    "n": "Number of bits.",
    "width": "Width of the layers.",
    "heads": "Attention or state-space heads; ignored by "
    f"{' and '.join(name for name, family in FAMILIES.items() if not family.has_heads)}.",
    "ff": "Hidden units of the feed-forward part; ignored by gru and mamba2.",
    "positions": f"{', '.join(map(_who_takes, POSITIONS))}.",
    "seeds": "Seeds, such as 0-4 or 0,3,8-9.",
    "seed": "Seed of the random choices.",
    "count": "How many inputs.",
    "lr": "Learning rate of the first epoch; 0.001 by default.",
    "batch_size": "Examples per step; 256 by default.",
    "max_epochs": "Epochs after which a run stops; 500 by default.",
    "stop_when_solved": "Stop a run at its first perfect epoch.",
    "examples": "What training draws: uniform (as in the paper), mixed (half have two densities, "
    "with one cut), or blocks (half have two densities in turn, with up to five cuts).",
    "consistency": "Also train layers to ignore bits that do not matter, so that proofs close: 1 "
    "is the recipe, 0 none. Examples are then blocks unless given.",
    "device": "auto, cpu, cuda, or cuda:1 if there are several.",
    "kernels": "auto (fused kernels where they apply), on (an error where they do not) or off.",
    "compiled": "On a CPU: auto (compiled code where it pays off), on (an error where it cannot be "
    "used) or off.",
    "workers": _WORKERS,
    "store": Option("--store", envvar="ITHBIT_STORE", help=_STORE),
    "retry_failed": "Train again the runs that are recorded as failed.",
    "tensorboard": "Also write every epoch's numbers into this folder for TensorBoard.",
    "dry_run": "Only list the runs, what is done and how long the rest may take; with --on slurm "
    "also the sbatch line and the script.",
    "on": "local (this machine) or slurm (a cluster).",
    "slurm": "An option for sbatch, such as partition=gpu; or setup=LINE, which each task runs "
    "first, or python=COMMAND, which starts Python there; repeatable.",
    "slurm_profile": "A TOML file of the same options.",
    "runs_per_task": "Runs of one shape per Slurm task; by default what one core, or one GPU, "
    "trains at once.",
    "detach": "On Slurm: submit what is missing and exit.",
    "cancel": "On Slurm: end the sweep's jobs; runs keep their state.",
    "source": "The store to take runs from.",
    "output_format": "parquet or csv; or zip, to pack the runs themselves into one file.",
    "show": "ours, published or both; published needs no store.",
    "settings": "Which runs count: 'any', with different settings listed separately, or 'paper': "
    "only those with the paper's sizes and protocol, stopped when first perfect or not.",
    "out": "Write to this file or folder.",
    "alpha": "Accepted chance that a faithful reproduction is called different.",
    "variant": "Another construction: cosine (rhi softmax), heavy (rhi linear-full), "
    "time-invariant (lhi ssm), pair (lhi rnn).",
    "file": "A certificate: from `ithbit certify … -o FILE`, or a run's proof.json.",
    "index": "Which bit is asked for, counted from 1.",
    "model": "formal: the layers the paper defines; trained: those it trains.",
    "feature": "Formal linear attention: the kernel ELU+1 or ReLU+1.",
    "transition": "Formal SSM: A(x), B(x) affine in x, or A constant and B linear.",
    "activation": "Trained attention: exact erf GELU or ReLU in its feed-forward.",
    "state": "Mamba2: state size per channel.",
    "conv": "Mamba2: width of the causal convolution.",
    "position": "Softmax: the token k that is computed.",
    "all_cells": "Show every cell.",
    "solved_only": "With --all: leave out runs that are not solved.",
    "again": "With --all: also verify runs that already have a record; what is known is kept.",
    "budget": "Inputs to evaluate per run. If there are no more than that, all are tried; up to "
    "n = 16 (1,048,576 inputs), on a GPU up to n = 22, always.",
    "layer": "PATH.py:Factory, package.module:Factory, or a ready layer: torch:lstm, torch:rnn, "
    "torch:gru, torch:transformer-encoder-layer, torch:transformer-encoder-layer-causal, or on a "
    "GPU fla:Class (GLA, DeltaNet, GatedDeltaNet, RWKV7, RetNet, HGRN2, …).",
    "rank_n": "Measure the causal rank for k up to this, and up to four times that while it grows.",
    "minutes": "Stop after this many minutes and report which runs are unfinished; by default 4.5 "
    "with --stop-when-solved, else no limit.",
    "train": "Only causality, rank and bound, in seconds.",
    "train_families": "Also train the six families where the store lacks them; slow.",
    "exhaustive": "Also write all n·2^n inputs, for n up to 16.",
    "predictions": ".npz with an array per set, or .csv/.parquet: see the README of the data.",
    "data": "Folder that `ithbit data` wrote.",
}

# Commands where a name means something different.
SWEEP = {
    "name": "paper, positions, longer, smoke, demo, or a .toml file.",
    "task": "Only this task; repeatable.",
    "family": "Only this family; repeatable.",
    "layers": "Only this depth; repeatable.",
    "n": "Only this length; repeatable.",
    "seeds": "Seeds instead of the sweep's own, such as 0-19.",
    "max_epochs": "Epochs after which a run stops, instead of the sweep's own.",
    "workers": f"{_WORKERS} On Slurm: array tasks that run at once.",
}
STATUS = SWEEP | {"name": "A sweep, to see which of its runs are missing."}
PLOT = {
    "name": "successes, accuracy, epochs, positions, length or curves.",
    "out": "File; its suffix, .png, .svg or .pdf, sets the format. By default NAME.png.",
    "task": "For curves: rhi or lhi; repeatable.",
    "family": "For curves: the family, as in `ithbit export`; repeatable.",
    "layers": "For curves: the depth; repeatable.",
    "n": "For curves: the length; repeatable.",
    "positions": "For curves: the encoding; repeatable.",
}
TABLE = {
    "name": "main, accuracy, positions, cost, length-by-n or length-by-family.",
    "output_format": "text, markdown, csv or latex (booktabs).",
}
CHECK = {
    "layer": "A family (gru, mamba2, …), PATH.py:Factory, package.module:Factory, or a ready "
    "layer: lstm, transformer-encoder-layer, on a GPU fla:GLA …",
    "model": "Instead of a layer, a whole model of token ids: PATH.py:factory, "
    "package.module:factory, transformers:LlamaForCausalLM, a family, or the folder of a run.",
    "width": "Width of the inputs of a layer.",
    "seconds": "Processor time after which nothing new is tried.",
    "seed": "Seed of the weights and of all inputs: the same seed tries the same.",
    "allow": "A clause that may be broken, such as length or batch; repeatable.",
    "dtype": "The widest dtype to check in: float64, float32 or bfloat16.",
    "device": "auto (the CPU, for fla: the GPU), cpu, cuda, or cuda:1 if there are several.",
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
    "need": "Seeds that must succeed and not be refuted, at one learning rate.",
    "factor": "Largest final ratio between a failed and a solved length.",
    "start": "The length to start with.",
    "most_n": "The longest length to try.",
    "max_epochs": "Epochs after which a run stops; 200 by default.",
    "examples": "What training draws: mixed (the default), uniform or blocks.",
    "minutes": "Stop the search after this many minutes.",
    "dry_run": "Only report where the search stands.",
    "out": "Also write the capacity card, an HTML page.",
}
_RUN = "folders, or names or ids of runs in the store."
VERIFY = {
    "runs": Argument(metavar="RUN", help=f"Run {_RUN}"),
    "all_runs": "All finished runs of the store without a record.",
    "count": "Continue after the first wrong answer and count them all.",
    "prove": "Also seek a proof that no input is answered wrongly.",
    "seconds": "With --prove: the time allowed for the proof of one run.",
    "workers": "Processes that verify runs side by side; by default one, with --prove one per CPU "
    "core.",
    "layer": "Where the code of your own layer is now: FILE.py:Factory; repeatable.",
}
EXPLORE = {
    "runs": Argument(metavar="RUN", help=f"A run, or two of one task and length: {_RUN}"),
    "construction": "Leave out the construction next to the run.",
}
_OUTPUT = ("--output", "--out", "-o")
CONSTRUCTION = {
    "family": _formal_or_trained(),
    "layers": "With --model trained: number of layers; by default as few as suffice.",
    "bits": "The bit string, for instance 1011.",
    "values": "For mqar, induction and copy: how many values an answer can have.",
    "out": Option(*_OUTPUT, help="Also write the certificate, weights included."),
}
_AS_RUN = "With --model trained: also write the weights as a run into this store."
CONSTRUCT = CONSTRUCTION | {"out": Option(*_OUTPUT, help=_AS_RUN)}
_RECALL = "rhi (index last), lhi (index first), mqar, induction, induction-growing or copy."
_VALUES = "How many values an answer can have; 2 for rhi and lhi, 4096 for mqar, 3 symbols for "
_VALUES += "induction, 2 for copy."
THEORY = {
    "task": _RECALL,
    "values": _VALUES,
    "family": _formal_or_trained(),
    "heads": "Attention heads, or heads of Mamba2; must divide the width. By default 1 formal, 2 "
    "trained. Ignored by rnn, ssm, gru.",
    "ff": "Hidden units of the MLP or feed-forward part; 0 makes the formal MLPs affine. Ignored "
    "by gru, mamba2.",
    "n": "Report what holds at this n.",
    "all_routes": "Show every route, tightest first.",
    "bits": "Bits per number of the state, for --all.",
    "query_tokens": "For rhi and mqar: the index or the key is a word of so many tokens.",
    "query_symbols": "How many symbols these tokens are of; any number unless given.",
}
COMPLEXITY = THEORY | {
    "family": _formal_or_trained(causal=True),
    "task": f"Also what follows for a task: {_RECALL}",
}
VERDICT = {
    "task": _RECALL,
    "values": _VALUES,
    "family": _formal_or_trained(),
    "layers": "Number of layers, by default 1; not for the table.",
    "heads": THEORY["heads"],
    "ff": "Hidden units of the MLPs or feed-forward parts; 0 makes formal MLPs affine.",
    "state": "With --model trained: Mamba2's state size per channel, by default 16.",
}
SCORE = {"name": "What to call the model."}
DEMO = {"page": Option("--report", help="The report page; by default report.html in the store.")}
_JSON = "Write JSON to a file in an existing folder; - for stdout."
BENCH = {
    "n": "Number of bits; repeatable. By default 64.",
    "seeds": "Seeds in a stack; repeatable. By default 5.",
    "device": "auto, cpu or cuda.",
    "steps": "Optimiser steps timed at a time.",
    "repeats": "Repetitions, of which the median counts.",
    "quick": "A rough timing, for a CPU: three steps, once.",
    "read": "Print the table of an earlier result without timing anything.",
    "json": Option("--json", metavar="FILE", help=_JSON),
}
