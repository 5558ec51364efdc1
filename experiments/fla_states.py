"""The state of flash-linear-attention's layers: what the library declares, and what is measured.

*Declared* is the class's own `state_size` where it has one, else the numbers that its cache holds
for one sequence after eight tokens. *Measured* is the causal rank (`ithbit.contract.rank`) in
float64. The layers are fla's own modules at width 16 with two heads and no expansion; their Triton
kernels are replaced by plain PyTorch forms, without a loop over the tokens, so this runs on a CPU
and says nothing about the kernels themselves. `experiments/fla_states.py:GLA` and so on are layers
to train, on any device.

    python experiments/fla_states.py [LAYER ...] [-o FILE]
    ithbit capacity rhi experiments/fla_states.py:GLA

Needs flash-linear-attention and transformers (`ithbit[reference-gpu]`). Some minutes on one core.
"""

import argparse
import csv
import importlib
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ithbit.contract.building import Subject
from ithbit.contract.check import check_contract
from ithbit.contract.findings import CheckSettings
from ithbit.contract.rank import causal_rank
from ithbit.models.adapters import FlaLayer, fla_module

WIDTH = 16
LAYERS: dict[str, tuple[str, int, dict[str, Any]]] = {
    # the class, the n at which the search for the rank starts, and arguments that are not as usual
    "GatedDeltaNet": ("GatedDeltaNet", 32, {}),
    "DeltaNet": ("DeltaNet", 32, {}),
    "KimiDeltaAttention": ("KimiDeltaAttention", 32, {}),
    "GLA": ("GatedLinearAttention", 32, {}),
    "RetNet": ("MultiScaleRetention", 32, {}),
    "RWKV7": ("RWKV7Attention", 32, {}),
    "HGRN": ("HGRNAttention", 32, {}),
    "HGRN2": ("HGRN2Attention", 32, {}),
    "Mamba2": ("Mamba2", 40, {}),
    "BasedLinearAttention": ("BasedLinearAttention", 124, {}),
    # Parts left out, to see what each adds.
    "GatedDeltaNet-no-conv": ("GatedDeltaNet", 32, {"use_short_conv": False}),
    "DeltaNet-no-conv": ("DeltaNet", 32, {"use_short_conv": False}),
    "KimiDeltaAttention-no-conv": ("KimiDeltaAttention", 32, {"use_short_conv": False}),
    "RWKV7-no-norm": ("RWKV7Attention", 32, {}),
    "Mamba2-conv-1": ("Mamba2", 40, {"conv_kernel": 1}),
    "Based-key-4": ("BasedLinearAttention", 36, {"feature_dim": 4}),
    "Based-key-8": ("BasedLinearAttention", 94, {"feature_dim": 8}),
}
COLUMNS = ("layer", "class", "declared", "how_declared", "measured", "ranks", "seconds", "note")


class Double(TorchFunctionMode):
    """Plain forms round to float32 inside; here they go on in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})


class Plain(FlaLayer):
    """A layer of fla in float64, by plain PyTorch."""

    def forward(self, x: Tensor) -> Tensor:
        with Double():
            return super().forward(x)


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """Depthwise and causal; the cache has as many tokens as the kernel."""
    size = weight.shape[-1]
    window = F.pad(x.mT, (size, 0))
    out = F.conv1d(window[..., 1:], weight[:, None], bias, groups=len(weight)).mT
    return (F.silu(out) if activation else out), window[..., -size:]


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5, **_: Any) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rms_norm_gated(
    x: Tensor, g: Tensor, weight: Tensor, activation: str, eps: float, **_: Any
) -> Tensor:
    return rms_norm(x, weight, eps) * (g.sigmoid() if activation == "sigmoid" else F.silu(g))


def rms_norm_linear(
    o: Tensor, norm: Tensor, _: None, weight: Tensor, bias: Tensor | None
) -> Tensor:
    return F.linear(rms_norm(o, norm), weight, bias)


def unit(x: Tensor) -> Tensor:
    """As fla's l2norm."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def recalled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    drop: Tensor | None = None,
    put: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """q_t S_t for every token t, and the last state, without a loop over the tokens, where

        S_t = exp(decay_t) S_{t-1} + put_t (drop_t S_{t-1}) + k_t v_t.

    All are (batch, token, head, number). Decays are logarithms, one for each row of S or one for
    all of them. What `drop` reads off the state follows from the tokens before by a triangular
    system.
    """
    total, token = decay.cumsum(1), torch.arange(q.shape[1], device=q.device)

    def weights(reader: Tensor, at: Tensor, written: Tensor, seen: Tensor) -> Tensor:
        gap = at[:, :, None] - total[:, None]  # batch, reading token, written token, head, number
        shares = gap.masked_fill(~seen[:, :, None, None], -torch.inf).exp()
        if shares.shape[-1] == 1:  # all rows decay alike: an axis less in the largest tensor
            products = torch.einsum("bthd,bshd->bhts", reader, written)
            return products * shares[..., 0].permute(0, 3, 1, 2)
        return torch.einsum("bthd,btshd,bshd->bhts", reader, shares, written)

    def read(reader: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("bhts,bshv->bthv", reader, values)

    def left(written: Tensor, values: Tensor) -> Tensor:
        kept = written * (total[:, -1:] - total).exp()
        return torch.einsum("bshd,bshv->bhdv", kept, values)

    upto, before = token[:, None] >= token, token[:, None] > token
    out, state = read(weights(q, total, k, upto), v), left(k, v)
    if drop is None or put is None:
        return out, state
    dropped = read(weights(drop, total - decay, k, before), v)
    dropped = read(resolvent(weights(drop, total - decay, put, before)), dropped)
    return out + read(weights(q, total, put, upto), dropped), state + left(put, dropped)


def resolvent(below: Tensor) -> Tensor:
    """The inverse of 1 - `below`, which is zero on and above the diagonal: of blocks twice as large
    at every step."""
    n = below.shape[-1]
    token, size = torch.arange(n, device=below.device), 1
    found = torch.eye(n, dtype=below.dtype, device=below.device)
    while size < n:
        block = token // size
        lower = (block[:, None] // 2 == block // 2) & (block[:, None] > block)
        found = found + found @ (below * lower) @ found
        size *= 2
    return found


def scaled(q: Tensor) -> Tensor:
    return q * q.shape[-1] ** -0.5


def delta(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The delta rule with decay: v_t replaces, by the share beta_t, what the state has for k_t."""
    q, k, beta = scaled(unit(q)), unit(k), beta[..., None]
    return recalled(q, k, beta * v, decay, k * decay.exp(), -beta * k)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    return delta(q, k, v, torch.zeros_like(k[..., :1]), beta)


def gated_delta_rule(**given: Any) -> tuple[Tensor, Tensor]:
    from fla.ops.gated_delta_rule.gate import naive_gdn_gate

    return _gated(naive_gdn_gate, **given)


def kimi(**given: Any) -> tuple[Tensor, Tensor]:
    from fla.ops.kda.gate import naive_kda_gate

    return _gated(naive_kda_gate, **given)


def _gated(
    gate: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    decay = gate(g, A_log, dt_bias, g.dtype)
    if decay.dim() < k.dim():
        decay = decay[..., None]
    return delta(q, k, v, decay, beta.sigmoid())


def gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, gk: Tensor | None = None, **_: Any
) -> tuple[Tensor, Tensor]:
    decay = g if gk is None else gk
    assert decay is not None
    return recalled(scaled(q), k, v, decay)


def hgrn(x: Tensor, g: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    one = torch.ones_like(x)[..., None]  # every channel is a head with a key of one number
    out, state = recalled(one, one, x[..., None], g[..., None])
    return out[..., 0], state


def retention(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    head = torch.arange(q.shape[2], dtype=q.dtype, device=q.device)
    decay = (1 - 2.0 ** (-5.0 - head)).log()
    return recalled(scaled(q), k, v, decay[:, None].expand_as(k[..., :1]))


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, **_: Any) -> Tensor:
    from fla.modules.rotary.ops import rotary_embedding_ref

    return rotary_embedding_ref(x, cos[: x.shape[1]], sin[: x.shape[1]], interleaved)


def rwkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    return recalled(r, k, v, w, a, b)


def token_shift(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    from fla.modules.token_shift import token_shift_ref

    return token_shift_ref(x), x[:, -1]


def based(q: Tensor, k: Tensor, v: Tensor, scale: float, use_norm: bool) -> Tensor:
    from fla.ops.based.naive import naive_parallel_based

    heads = (x.transpose(1, 2) for x in (q, k, v))
    return naive_parallel_based(*heads, scale, use_norm).transpose(1, 2)


PLAIN: dict[str, dict[str, Any]] = {  # a string: the library's own form, by its place in fla
    "modules.causal_conv1d.ops": {"causal_conv1d": convolution},
    "modules.norm.layernorm": {"rms_norm": rms_norm},
    "modules.norm.fused_norm_gate": {"rms_norm_gated": rms_norm_gated},
    "modules.norm.layernorm_gated": {"rmsnorm_fn": "modules.norm.layernorm_gated.rms_norm_ref"},
    "modules.rotary.ops": {"rotary_embedding": rotary},
    "layers.gated_deltanet": {
        "causal_conv1d": convolution,
        "chunk_gated_delta_rule": gated_delta_rule,
        "fused_recurrent_gated_delta_rule": gated_delta_rule,
    },
    "layers.delta_net": {"chunk_delta_rule": delta_rule, "fused_recurrent_delta_rule": delta_rule},
    "layers.kda": {"chunk_kda": kimi, "fused_recurrent_kda": kimi},
    "layers.gla": {"chunk_gla": gla, "fused_recurrent_gla": gla},
    "layers.hgrn": {
        "chunk_hgrn": hgrn,
        "fused_recurrent_hgrn": hgrn,
        "swiglu": lambda x, y: F.silu(x) * y,
    },
    "layers.hgrn2": {
        "chunk_gla": gla,
        "fused_recurrent_gla": gla,
        "swish": F.silu,
        "rms_norm_linear": rms_norm_linear,
    },
    "layers.multiscale_retention": {
        "chunk_retention": retention,
        "fused_recurrent_retention": retention,
    },
    "layers.rwkv7": {
        "chunk_rwkv7": rwkv7,
        "token_shift": token_shift,
        "fused_addcmul_rwkv7": "ops.rwkv7.fused_addcmul.torch_addcmul_rwkv7",
        "fused_k_rwkv7": "ops.rwkv7.fused_k_update.k_update_ref",
        "gate_output_correction": "ops.rwkv7.gate_output_correction.gate_output_correction_ref",
    },
    "layers.mamba2": {"ACT2FN": {"silu": F.silu}},  # it has a plain form, `torch_forward`
    "layers.based": {"parallel_based": based},
}


def stand_ins() -> None:
    """Put the plain forms where fla's modules look for their kernels, in this process."""
    for place, forms in PLAIN.items():
        module = importlib.import_module(f"fla.{place}")
        for name, form in forms.items():
            if isinstance(form, str):
                own = importlib.import_module(f"fla.{form.rpartition('.')[0]}")
                form = getattr(own, form.rpartition(".")[2])
            getattr(module, name)  # raises if fla has no such name any more
            setattr(module, name, form)


def trained(name: str, width: int) -> FlaLayer:
    """A layer of fla by plain forms, to be trained on any device, seeds side by side."""
    stand_ins()
    kind, _, other = LAYERS[name]
    return FlaLayer(fla_module(kind, width, **other))


GatedDeltaNet = partial(trained, "GatedDeltaNet")
DeltaNet = partial(trained, "DeltaNet")
KimiDeltaAttention = partial(trained, "KimiDeltaAttention")
GLA = partial(trained, "GLA")
RetNet = partial(trained, "RetNet")
RWKV7 = partial(trained, "RWKV7")
HGRN = partial(trained, "HGRN")
HGRN2 = partial(trained, "HGRN2")
Mamba2 = partial(trained, "Mamba2")
BasedLinearAttention = partial(trained, "BasedLinearAttention")


def built(name: str) -> Plain:
    """A layer of fla with random weights, always the same ones."""
    torch.manual_seed(0)
    kind, _, other = LAYERS[name]
    module = fla_module(kind, WIDTH, **other)
    if name == "RWKV7-no-norm":
        module.g_norm = nn.Identity()
    return Plain(module).double()


def declared(layer: nn.Module) -> tuple[int, str]:
    """The numbers of the state that the library itself would keep, and how that is known."""
    if hasattr(layer, "state_size"):
        return layer.state_size(), "state_size"
    if hasattr(layer, "feature_map"):  # BasedLinearAttention takes no cache
        features = layer.feature_map(torch.zeros(layer.head_k_dim)).numel()
        return layer.num_heads * features * (layer.head_v_dim + 1), "counted from its features"
    from fla.models.utils import Cache

    cache = Cache()
    with Double():
        layer(torch.randn(1, 8, WIDTH).double(), past_key_values=cache, use_cache=True)
    return sum(map(numbers, cache[0].values())), "counted from its cache"


def numbers(kept: Any) -> int:
    """How many numbers a part of a cache has."""
    if kept is None:
        return 0
    return kept.numel() if isinstance(kept, Tensor) else sum(map(numbers, kept))


def row(name: str) -> dict[str, Any]:
    start = time.perf_counter()
    layer = built(name)
    keeps, how = declared(layer.layer)
    device = next(layer.parameters()).device.type
    subject = Subject(name, WIDTH, lambda _: built(name), ("layer = build()",))
    seen = check_contract(subject, CheckSettings(seconds=4.0, width=WIDTH, device=device))
    leak = next((each.sentence for each in seen.findings() if each.clause == "causal"), "")
    rank = causal_rank(layer, WIDTH, LAYERS[name][1])
    state = "" if rank.state is None or leak else rank.state
    note = f"not causal: {leak}" if leak else rank.sentence()
    seconds = round(time.perf_counter() - start)
    values = (name, LAYERS[name][0], keeps, how, state, rank.spelled(), seconds, note)
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=", ".join(LAYERS))
    parser.add_argument("-o", type=Path, metavar="FILE", help="write the table as CSV")
    asked = parser.parse_args()
    if unknown := set(asked.layers) - set(LAYERS):
        parser.error(
            f"no stand-ins for {', '.join(sorted(unknown))}; there are: {', '.join(LAYERS)}"
        )
    warnings.simplefilter("ignore")  # fla warns of the missing GPU, RWKV7 of itself
    torch.set_num_threads(1)
    try:
        stand_ins()
    except ImportError as error:
        parser.exit(2, f"this needs flash-linear-attention ({error}): ithbit[reference-gpu]\n")
    rows = []
    for name in asked.layers or LAYERS:
        rows.append(row(name))
        print("  ".join(str(rows[-1][c]) for c in COLUMNS if c != "ranks"), flush=True)
    if asked.o:
        with asked.o.open("w", newline="") as file:
            table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
