"""The state of flash-linear-attention's layers: what the library declares, and what is measured.

*Declared* is the class's own `state_size` where it has one, else the numbers that its cache holds
for one sequence after eight tokens. *Measured* is the causal rank (`ithbit.probe.rank`) in float64.
The layers are fla's own modules at width 16 with two heads and no expansion; their Triton kernels
are replaced by the library's plain PyTorch forms, or by a few lines where it has none, so this runs
on a CPU and says nothing about the kernels themselves.

    python experiments/fla_states.py [LAYER ...] [-o FILE]

Needs flash-linear-attention and transformers (`ithbit[reference-gpu]`). Some minutes on one core.
"""

import argparse
import csv
import importlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ithbit.models.adapters import FlaLayer, fla_module
from ithbit.probe.behaviour import behaviour
from ithbit.probe.rank import causal_rank

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


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    from fla.ops.delta_rule.naive import delta_rule_recurrence

    heads = (x.transpose(1, 2) for x in (unit(q), unit(k), v, beta))
    out, state = delta_rule_recurrence(*heads)
    return out.transpose(1, 2), state


def gated_delta_rule(**given: Any) -> tuple[Tensor, Tensor]:
    from fla.ops.gated_delta_rule.gate import naive_gdn_gate
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    return _gated(naive_gdn_gate, naive_recurrent_gated_delta_rule, **given)


def kimi(**given: Any) -> tuple[Tensor, Tensor]:
    from fla.ops.kda.gate import naive_kda_gate
    from fla.ops.kda.naive import naive_recurrent_kda

    return _gated(naive_kda_gate, naive_recurrent_kda, **given)


def _gated(
    gate: Callable[..., Tensor],
    recurrent: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    decay, rate = gate(g, A_log, dt_bias, g.dtype), beta.sigmoid()
    return recurrent(unit(q), unit(k), v, g=decay, beta=rate, output_final_state=True)


def gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, gk: Tensor | None = None, **_: Any
) -> tuple[Tensor, Tensor]:
    from fla.ops.gla.naive import naive_recurrent_gla

    return naive_recurrent_gla(q, k, v, g if gk is None else gk, output_final_state=True)


def retention(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    decay = (1 - 2.0 ** (-5.0 - torch.arange(q.shape[2]).to(q))).log()
    return naive_recurrent_simple_gla(q, k, v, decay.expand(q.shape[:3]))


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, **_: Any) -> Tensor:
    from fla.modules.rotary.ops import rotary_embedding_ref

    return rotary_embedding_ref(x, cos[: x.shape[1]], sin[: x.shape[1]], interleaved)


def rwkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence

    scaled = r * r.shape[-1] ** 0.5  # it divides by this, and RWKV7 does not
    out, state = dplr_recurrence(*(x.transpose(1, 2) for x in (scaled, k, v, a, b, w)))
    return out.transpose(1, 2), state


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
        "chunk_hgrn": "ops.hgrn.naive.naive_recurrent_hgrn",
        "fused_recurrent_hgrn": "ops.hgrn.naive.naive_recurrent_hgrn",
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


class GatedDeltaNet(FlaLayer):
    """To be trained where the kernels cannot: some versions of Triton get them wrong on Hopper."""

    def __init__(self, width: int) -> None:
        stand_ins()
        super().__init__(fla_module("GatedDeltaNet", width))


class RWKV7(FlaLayer):
    """To be trained at small widths: the kernels need heads of 16 numbers or more."""

    def __init__(self, width: int) -> None:
        stand_ins()
        super().__init__(fla_module("RWKV7Attention", width))


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
    leak = behaviour(layer, WIDTH, 12).leak
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
