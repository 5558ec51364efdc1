"""Ready-made layers: those of `torch.nn` as `torch:…`, and on a GPU those of fla as `fla:…`."""

import importlib
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ithbit.errors import LayerError

# Short names for classes of fla.layers; any other class goes by its own name.
FLA = {
    "GLA": "GatedLinearAttention",
    "RetNet": "MultiScaleRetention",
    "RWKV6": "RWKV6Attention",
    "RWKV7": "RWKV7Attention",
    "HGRN": "HGRNAttention",
    "HGRN2": "HGRN2Attention",
}


class RecurrentAdapter(nn.Module):
    """A recurrent layer of `torch.nn` that returns only its outputs; its state has `state_size`
    numbers."""

    def __init__(self, kind: type[nn.RNN] | type[nn.GRU] | type[nn.LSTM], width: int) -> None:
        super().__init__()
        self.cell = kind(width, width, batch_first=True)
        self.state_size = 2 * width if kind is nn.LSTM else width

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cell(x)[0]
        return out


class EncoderAdapter(nn.Module):
    """`nn.TransformerEncoderLayer` without dropout; two heads if the width is even, else one."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.layer = nn.TransformerEncoderLayer(
            width, 2 if width % 2 == 0 else 1, 4 * width, dropout=0.0, batch_first=True
        )

    def forward(self, x: Tensor) -> Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device, x.dtype)
        out: Tensor = self.layer(x, src_mask=ahead if self.causal else None)
        return out


class FlaLayer(nn.Module):
    """A layer of fla that returns only its output tensor."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def train(self, mode: bool = True) -> "FlaLayer":
        # In evaluation mode fla runs short inputs in recurrent kernels, some without a backward.
        return super().train(True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        first: Tensor = out[0] if isinstance(out, tuple) else out
        return first


ADAPTERS: dict[str, Callable[[int], nn.Module]] = {
    "torch:lstm": lambda width: RecurrentAdapter(nn.LSTM, width),
    "torch:rnn": lambda width: RecurrentAdapter(nn.RNN, width),
    "torch:gru": lambda width: RecurrentAdapter(nn.GRU, width),
    "torch:transformer-encoder-layer": lambda width: EncoderAdapter(width, causal=False),
    "torch:transformer-encoder-layer-causal": lambda width: EncoderAdapter(width, causal=True),
}


def adapter_named(name: str) -> Callable[[int], nn.Module]:
    """The factory of a ready-made layer, by the name of its family; one of fla needs a GPU, where
    its kernels run."""

    def of_fla(width: int) -> nn.Module:
        if not torch.cuda.is_available():
            raise LayerError(f"{name} needs a CUDA GPU, but torch sees none")
        kind = name.removeprefix("fla:")
        return FlaLayer(fla_module(FLA.get(kind, kind), width))

    return ADAPTERS.get(name, of_fla)


def fla_module(kind: str, width: int, **other: Any) -> nn.Module:
    """fla's own module: two heads, no expansion where it has that option; `other` is passed on."""
    try:
        with untuned():
            layers = importlib.import_module("fla.layers")
    except ImportError as error:
        raise LayerError(
            f"fla:{kind} needs flash-linear-attention ({error}); install ithbit[reference-gpu]"
        ) from error
    layer_class = getattr(layers, kind, None)
    if layer_class is None:
        names = ", ".join(sorted(n for n in vars(layers) if n[0].isupper()))
        raise LayerError(f"fla.layers has no {kind}; it has {names}")
    parameters = inspect.signature(layer_class).parameters
    settings: dict[str, Any] = {
        "hidden_size": width,
        "num_heads": 2,
        "head_dim": width // 2,
        "expand_ratio": 1 if kind == "HGRNAttention" else width // 2,
        "expand": 1,
        "expand_k": 1.0,
        "expand_v": 1.0,
        "state_size": width,
        "num_key_value_heads": 2,
        "layer_idx": 0,
        "num_hidden_layers": 2,  # some layers initialise by their place in a stack
    }
    if kind == "Mamba2":
        settings["chunk_size"] = 16  # its plain form pads every input to this: costs only memory
    sizes = {name: value for name, value in settings.items() if name in parameters}
    module: nn.Module = layer_class(**sizes, **other)
    return module


@contextmanager
def untuned() -> Iterator[None]:
    """Context in which newly defined Triton kernels keep only their smallest configuration.

    fla's autotuning compiles and times about ten per kernel, again for every new shape: minutes
    before the first step, at widths where all of them take microseconds.
    """
    from triton.runtime.autotuner import Autotuner

    define: Any = Autotuner.__init__

    def smallest(config: Any) -> tuple[int, int, int]:
        blocks = [size for size in config.kwargs.values() if type(size) is int and size > 0]
        return math.prod(blocks), config.num_stages, abs(config.num_warps - 4)

    def with_one(self: Any, fn: Any, names: Any, configs: Any, *rest: Any, **more: Any) -> None:
        define(self, fn, names, sorted(configs or [], key=smallest)[:1], *rest, **more)

    Autotuner.__init__ = with_one
    try:
        yield
    finally:
        Autotuner.__init__ = define
