"""A model of `ithbit.models` with random weights, and its stages as systems of equations."""

import math
from dataclasses import dataclass, replace

import torch
from tests.support.completions import trained as completions
from tests.support.decisions import mamba2, trained
from tests.support.decisions.system import System
from tests.theory.test_complexity_models import program

from ithbit.models import classifier
from ithbit.models.linear_attention import features
from ithbit.models.stacked import Sequence, TokenStream, layer_norm, linear, part
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import token_table
from ithbit.theory.bounds.counting import Stage

FIXED = 2  # bits beside the index, and at the end, that Mamba2's convolution shows


@dataclass(frozen=True)
class Run:
    """One string of bits, asked at every index: what each layer takes, and the logits."""

    spec: ModelSpec
    model: trained.Model
    params: dict
    layers: list[torch.Tensor]  # the input of each layer: index token dim
    logits: list[float]

    def block(self, layer: int) -> dict:
        return part(self.params, f"blocks.{layer}")


def run(spec: ModelSpec, activation: str = "gelu", seed: int = 0) -> Run:
    """A model with random weights, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    params = {
        # Larger than at the start of training, so that no part is negligible.
        name: (value + 0.5 * torch.randn(value.shape, generator=generator))[None].double()
        for name, value in classifier.init(spec, seed).items()
    }
    n = spec.n_bits
    bits = torch.randint(0, 2, (n,), generator=generator, dtype=torch.uint8).expand(1, n, n)
    examples = Examples(bits, torch.arange(1, n + 1)[None])
    table = token_table(spec.task, n, torch.float64)
    one_hot = torch.eye(n, dtype=torch.float64)[None]
    rows = classifier.token_vectors(params, spec, table)
    stream = TokenStream(rows, spec.task, bits.double(), one_hot)
    layers = [stream.all(rows)[0]]
    for layer in range(spec.n_layers - 1):
        block = classifier.BLOCKS[spec.family].block
        stream = Sequence(block(part(params, f"blocks.{layer}"), spec, stream, False))
        layers.append(stream.rows[0])
    plain = [
        {name: value[0].tolist() for name, value in part(params, f"blocks.{layer}").items()}
        for layer in range(spec.n_layers)
    ]
    model = trained.Model(
        plain,
        params["head.weight"][0, 0].tolist(),
        params["head.bias"].item(),
        spec.n_heads,
        params["leave.norm.weight"][0].tolist() if spec.family == "mamba2" else (),
        activation,
    )
    logits = classifier.logits(params, spec, table, examples)[0].tolist()
    return Run(spec, model, params, layers, logits)


def systems(
    run: Run, stage: Stage, signs: trained.Signs, n_indices: int | None = None
) -> list[tuple[System, float]]:
    """The system of one stage at the first indices, or all, and what its last test decides.

    The fingerprint is taken from the bits once and used at every index.
    """
    decide = _DECISIONS[run.spec.task, run.spec.family.split("-")[0]](run, stage, signs)
    found = []
    for index in range(n_indices or run.spec.n_bits):
        system = System()
        found.append((system, decide(system, index)))
    return found


def _states(run: Run) -> list[list[float]]:
    """Each layer's fingerprint of the bits, by the programs that the models are held to."""
    return [
        program(run.spec.family, run.spec, run.block(layer)).fingerprint(x[0, :-1].tolist())
        for layer, x in enumerate(run.layers)
    ]


def _gru(run, stage, signs):
    states = _states(run)
    return lambda s, i: trained.gru_rhi(s, run.model, run.layers[0][i, -1].tolist(), states)


def _linear_rhi(run, stage, signs):
    states, L = _states(run), run.spec.n_layers
    layer, what = L, "readout"
    if stage.what != "readout":
        head, _, name = stage.what.partition(", ")
        layer, what = int(head.split()[1]), {"feature signs": "signs"}.get(name, name)
    x = run.layers[0]
    return lambda s, i: trained.pre_ln_rhi(
        s, run.model, x[i, -1].tolist(), states, (layer, what), signs
    )


def _attention_lhi(run, stage, signs):
    """alpha, gamma of every index; beta, rho of the rest."""
    spec, p, H = run.spec, run.block(0), run.spec.n_heads
    x, bert = run.layers[0][None], spec.family.startswith("softmax")
    if bert:
        q, k, v = linear(x, p["qkv.weight"], p["qkv.bias"]).split(spec.d_model, dim=-1)
    else:
        normal = layer_norm(x, p["norm1.weight"], p["norm1.bias"], trained.LINEAR_EPS)
        q, k, v = linear(normal, p["qkv.weight"]).split(spec.d_model, dim=-1)
        q, k = features(q), features(k)
    q, k, v = (u[0].unflatten(-1, (H, -1)) for u in (q, k, v))
    weights = (q[:, -1:] * k).sum(-1)  # index token head
    weights = (weights / math.sqrt(spec.d_head)).exp() if bert else weights
    mixed = weights.unsqueeze(-1) * v
    alpha, gamma = mixed[:, 0].flatten(-2), weights[:, 0] + (0 if bert else trained.DENOMINATOR_EPS)
    rest = mixed[0, 1:].sum(0).flatten().tolist(), weights[0, 1:].sum(0).tolist()
    end = x[0, 0, -1].tolist()

    def decide(s, i):
        index = alpha[i].tolist(), gamma[i].tolist()
        if run.model.activation == "gelu":
            return trained.block_lhi(s, run.model, end, index, rest, bert)
        return trained.relu_lhi(s, run.model, end, index, rest, bert, stage.what, signs)

    return decide


def _older(run: Run, layer: int, window: list[float]) -> list[float]:
    """The convolution's sum over the tokens before the last."""
    taps = run.model.blocks[layer]["conv.weight"][:-1]
    c = len(taps[0])
    return [sum(tap[j] * window[t * c + j] for t, tap in enumerate(taps)) for j in range(c)]


def _mamba2_rhi(run, stage, signs):
    d, N = run.spec.d_model, run.spec.d_state
    kept = _states(run)
    states = [state[: d * N] for state in kept]
    windows = [_older(run, layer, state[d * N :]) for layer, state in enumerate(kept)]
    x = run.layers[0]
    return lambda s, i: mamba2.mamba2_rhi(s, run.model, x[i, -1].tolist(), states, windows, N)


def _mamba2_lhi(run, stage, signs):
    """The bits beside the index and at the end are held fixed; the others give theta."""
    d, N, H = run.spec.d_model, run.spec.d_state, run.spec.n_heads
    x = run.layers[0]
    block: completions.Mamba2Block = program("mamba2", run.spec, run.block(0))
    starts = [block.fingerprint(row[: 1 + FIXED].tolist()) for row in x]

    def state_after(start: float) -> list[float]:
        found = [start] * (d * N) + starts[0][d * N :]
        for token in x[0, 1 + FIXED : -1].tolist():
            new, window, _, _ = block._step(found, token)
            found = [*new, *window]
        return found

    zero, one = state_after(0.0), state_after(1.0)
    decays = [one[j * N] - zero[j * N] for j in range(0, d, d // H)]
    window, end = _older(run, 0, zero[d * N :]), x[0, -1].tolist()
    (w,) = run.model.blocks
    C = mamba2.mamba2_inputs(System(), w, end, window, N)[3]
    rest = [
        sum(a * b for a, b in zip(C, row, strict=True)) for row in trained.split(zero[: d * N], d)
    ]

    def decide(s, i):
        start = trained.split(starts[i][: d * N], d)
        return mamba2.mamba2_lhi(s, run.model, end, window, N, start, decays, rest)

    return decide


_DECISIONS = {
    ("rhi", "gru"): _gru,
    ("rhi", "linear"): _linear_rhi,
    ("rhi", "mamba2"): _mamba2_rhi,
    ("lhi", "softmax"): _attention_lhi,
    ("lhi", "linear"): _attention_lhi,
    ("lhi", "mamba2"): _mamba2_lhi,
}


def counted(run: Run, stage: Stage) -> Stage:
    """The stage as its systems have it, whatever the earlier outcomes.

    Two indices tell which chain functions are shared; the systems of all have the same form.
    """
    found = [system for signs in trained.EVERY_OUTCOME for system, _ in systems(run, stage, signs)]
    shared = set.intersection(*(system.shared_with(found[0]) for system in found))
    assert len({len(system.parameters) for system in found}) == 1
    return replace(
        stage,
        parameters=len(found[0].parameters),
        tests=max(len(system.tests) for system in found),
        degree=max(system.measured_degree() for system in found),
        implicit=max(len(system.implicit) for system in found),
        chain=max(len(system.chain) for system in found) - len(shared),
        shared_chain=len(shared),
        chain_degree=max(system.chain_degree for system in found),
    )
