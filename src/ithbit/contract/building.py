"""Layers in the forms in which people have them, as modules and as the Python that makes them.

A *subject* makes a module and knows the text that does so. Arguments and calls are kept as text
and run from it: the lines that a finding prints are those that ran. A factory is called with the
width, with the number of tokens if it takes one, and with ordinary values for arguments that go by
an ordinary name (heads, a window, a config with such fields).
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ithbit.errors import LayerError
from ithbit.families import FAMILIES, family_named
from ithbit.models.adapters import adapter_named
from ithbit.models.classifier import BLOCKS
from ithbit.models.layer_source import READY, find_layer
from ithbit.models.stacked import Sequence
from ithbit.models.user_code import explained
from ithbit.spec import ModelSpec

_WIDTH = (
    *("width", "d_model", "dim", "hidden_size", "embed_dim", "n_embd", "embedding_dim", "d_embd"),
    *("model_dim", "input_size", "channels", "features", "in_features", "out_features", "n_embed"),
    *("hidden_dim", "hidden", "input_dim", "output_dim", "d_in", "d_out", "emb_dim", "size"),
    *("in_channels", "out_channels", "d_inner", "embed_size", "model_width", "attention_size"),
)
_LENGTH = (
    *("n", "n_tokens", "num_tokens", "seq_len", "seq_length", "sequence_length", "length", "T"),
    *("max_len", "max_length", "max_seq_len", "max_seq_length", "block_size", "n_ctx", "ctx_len"),
    *("context_length", "context_len", "max_position_embeddings", "sequence_len", "seqlen"),
    *("max_seqlen", "l_max", "context", "tokens", "context_size", "max_tokens", "max_positions"),
)
_HEADS = (
    *("n_heads", "num_heads", "nhead", "heads", "n_head", "num_attention_heads", "n_kv_head"),
    *("num_kv_heads", "num_key_value_heads", "n_kv_heads", "num_v_heads", "num_head"),
)
_PER_HEAD = ("head_dim", "d_head", "headdim", "head_size", "dim_head", "d_k", "d_v")
_FEED_FORWARD = (
    "dim_feedforward",
    "d_ff",
    "ff",
    "ffn_dim",
    "intermediate_size",
    "mlp_dim",
    "d_mlp",
)
_NUMBERS = {
    **dict.fromkeys(("d_state", "state_size", "n_state", "state_dim", "rank"), "16"),
    **dict.fromkeys(("kernel_size", "d_conv", "conv_size", "conv_kernel", "kernel"), "4"),
    **dict.fromkeys(("window", "window_size", "sliding_window"), "8"),
    **dict.fromkeys(("chunk_size", "chunk"), "16"),
    **dict.fromkeys(("n_experts", "num_experts", "experts", "num_local_experts"), "4"),
    **dict.fromkeys(("top_k", "num_experts_per_tok", "expand", "mlp_ratio", "expansion"), "2"),
    **dict.fromkeys(("layer_idx", "layer_id", "layer", "layer_index"), "0"),
    **dict.fromkeys(("n_layers", "num_layers", "n_layer", "num_hidden_layers", "depth"), "1"),
    **dict.fromkeys(("dropout", "p", "dropout_p", "attn_pdrop", "resid_pdrop", "p_dropout"), "0.0"),
    **dict.fromkeys(("attn_dropout", "attention_dropout", "resid_dropout"), "0.0"),
    **dict.fromkeys(("bias", "batch_first", "causal", "is_causal"), "True"),
    **dict.fromkeys(("eps", "norm_eps", "rms_norm_eps", "layer_norm_eps"), "1e-5"),
    **dict.fromkeys(("rope_theta", "rope_base", "theta", "rotary_base"), "10000.0"),
    "vocab_size": "32",
}
_CONFIG = ("config", "cfg", "conf", "args", "hparams")
LONGEST = 1025  # tokens that a factory is asked for, unless a length is tried by itself


@dataclass(frozen=True)
class Subject:
    """What is checked: `make(n_tokens)` builds it, and so do the `lines`, which bind `layer`."""

    name: str
    width: int
    make: Callable[[int], nn.Module] = field(repr=False)
    lines: tuple[str, ...] = ()
    by_length: bool = False  # made for a number of tokens
    instance: bool = False  # a module as it is: its weights are kept


class FamilyLayer(nn.Module):
    """One block of one of the six families: states in, states out, both batch token dim."""

    def __init__(self, family: str, width: int) -> None:
        super().__init__()
        heads = 2 if width % 2 == 0 else 1
        self.spec = ModelSpec("rhi", family, 8, 1, width, heads)
        seed = int(torch.randint(0, 1 << 31, ()))  # as all weights: from torch's seed
        params = BLOCKS[family].init_block(self.spec, torch.Generator().manual_seed(seed))
        self.names = {name: name.replace(".", "_") for name in params}
        for name, value in params.items():
            self.register_parameter(self.names[name], nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        params = {name: getattr(self, own).unsqueeze(0) for name, own in self.names.items()}
        return BLOCKS[self.spec.family].block(params, self.spec, Sequence(x[None]), False)[0]


def layer_named(name: str, width: int) -> nn.Module:
    """A layer of ours or of `torch.nn` by its name: one of the six families, `lstm`, `fla:GLA`.

    >>> layer_named("gru", 4)(torch.zeros(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """
    if name in FAMILIES:
        return FamilyLayer(family_named(name).name, width)
    made: nn.Module = adapter_named(find_layer(name).family)(width)
    return made


def subject_named(text: str, width: int) -> Subject:
    """The layer that a user names: a family, a ready-made layer, FILE.py:Factory or
    package.module:Factory."""
    if text in FAMILIES or text in READY or text.startswith(("torch:", "fla:")):
        if text not in FAMILIES:
            find_layer(text)  # raises if there is none
        lines = (
            "from ithbit.contract.building import layer_named",
            f"layer = layer_named({text!r}, {width})",
        )
        return Subject(text, width, lambda n_tokens: layer_named(text, width), lines)
    source = find_layer(text)
    where, _, name = text.rpartition(":")
    if isinstance(source.factory, nn.Module):
        return subject_of(source.factory, width, name)
    if where.endswith(".py"):
        path = Path(where).resolve()
        first: tuple[str, ...] = (
            "import runpy, sys",
            f"sys.path.append({str(path.parent)!r})",
            f"{name} = runpy.run_path({str(path)!r})[{name!r}]",
        )
    else:
        first = (f"from {where} import {name}",)
    return _from_factory(source.factory, name, width, first)


def subject_of(given: Any, width: int, name: str = "") -> Subject:
    """The layer that a Python caller gives: a name, a module, a class or a function."""
    if isinstance(given, Subject):
        return given
    if isinstance(given, str):
        return subject_named(given, width)
    if isinstance(given, nn.Module):
        import copy

        kept = copy.deepcopy(given)
        called = name or type(given).__name__
        lines = (
            "import copy",
            "layer = copy.deepcopy(layer)  # layer: the module that was checked",
        )
        return Subject(
            called,
            _width_of(given, width),
            lambda n_tokens: copy.deepcopy(kept),
            lines,
            False,
            True,
        )
    if not callable(given):
        raise LayerError(
            f"a layer is a module, a class, a function that returns a module or a name, got "
            f"{type(given).__name__}"
        )
    own = str(getattr(given, "__name__", type(given).__name__))
    return _from_factory(given, own, width, import_lines(given, own), name or own)


def _from_factory(
    factory: Callable[..., Any], name: str, width: int, first: tuple[str, ...], called: str = ""
) -> Subject:
    variable = name if name.isidentifier() else "factory"
    arguments, by_length = arguments_of(factory, name, width)
    expression = f"{variable}({arguments})"
    shown = f"types.{arguments}" if arguments.startswith("SimpleNamespace") else arguments
    extra = ("import types",) if shown != arguments else ()
    code = compile(expression, "<layer>", "eval")

    def make(n_tokens: int) -> nn.Module:
        given = {variable: factory, "T": n_tokens, "SimpleNamespace": SimpleNamespace}
        with explained(f"{name} cannot be built at width {width}"):
            module = eval(code, given)
        if not isinstance(module, nn.Module):
            raise LayerError(f"{name} must return a torch.nn.Module, got {type(module).__name__}")
        return module

    lines = (*extra, *first, f"layer = {variable}({shown})")
    return Subject(called or name, width, make, lines, by_length)


def arguments_of(factory: Callable[..., Any], name: str, width: int) -> tuple[str, bool]:
    """The arguments a factory is called with, as text in which T is the number of tokens, and
    whether it takes that.

    >>> arguments_of(lambda width, n: None, "f", 16), arguments_of(lambda dim, num_heads: 0, "f", 8)
    (('16, T', True), ('8, 2', False))
    """
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (ValueError, TypeError):  # a builtin without a signature
        return "", False
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in parameters if p.kind not in variadic]
    if not named and isinstance(factory, type) and issubclass(factory, nn.RNNBase):
        return f"{width}, {width}, batch_first=True", False  # torch's own take *args
    needed = [p for p in named if p.default is p.empty]
    texts, unknown = [], []
    for k, parameter in enumerate(needed):
        value = _guess(parameter.name, width)
        if value is None and k == 0:
            value = str(width)
        if value is None and parameter.name in _CONFIG:
            value = ""
        if value is None:
            unknown.append(parameter.name)
            continue
        by_name = parameter.kind is parameter.KEYWORD_ONLY
        texts.append(f"{parameter.name}={value}" if by_name else value)
    if unknown:
        names = ", ".join(p.name for p in needed)
        raise LayerError(
            f"{name} needs arguments ({names}); wrap it in a function that takes the width alone"
        )
    if len(needed) == 1 and needed[0].name in _CONFIG:
        return _config_text(factory, name, width), True
    given = {p.name for p in needed}
    sized = given & set(_WIDTH)
    optional = [p.name for p in named if p.name not in given]
    if not needed:
        texts += [f"{each}={width}" for each in optional if each in _WIDTH][:1]
        sized = {each for each in optional if each in _WIDTH}
    if sized:
        wanted = [each for each in optional if each in _HEADS] if not given - sized else []
        texts += [f"{each}={_guess(each, width)}" for each in wanted]
    texts += ["batch_first=True" for each in optional if each == "batch_first"]
    return ", ".join(texts), "T" in [text.rpartition("=")[2] for text in texts]


def _guess(name: str, width: int) -> str | None:
    """An ordinary value of an argument of that name, as text."""
    heads = 2 if width % 2 == 0 else 1
    for names, value in (
        (_WIDTH, str(width)),
        (_LENGTH, "T"),
        (_HEADS, str(heads)),
        (_PER_HEAD, str(width // heads)),
        (_FEED_FORWARD, str(4 * width)),
    ):
        if name in names:
            return value
    return _NUMBERS.get(name)


class _Config:
    """A config whose fields have ordinary values; it notes which were read."""

    def __init__(self, width: int) -> None:
        object.__setattr__(self, "width", width)
        object.__setattr__(self, "read", {})

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        text = _guess(name, own["width"])
        if text is None:
            raise AttributeError(f"no ordinary value is known for the field {name!r} of a config")
        own["read"][name] = text
        return LONGEST if text == "T" else eval(text)


def _config_text(factory: Callable[..., Any], name: str, width: int) -> str:
    config = _Config(width)
    fields: dict[str, str] = object.__getattribute__(config, "__dict__")["read"]
    with explained(f"{name} cannot be built from a config at width {width}"):
        factory(config)
    return f"SimpleNamespace({', '.join(f'{key}={value}' for key, value in fields.items())})"


def _width_of(module: nn.Module, width: int) -> int:
    """The width of a module that is there already: as it says, or the usual one."""
    for name in _WIDTH:
        value = getattr(module, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    shapes = [p.shape for p in module.parameters() if p.dim() == 2]
    if shapes and not any(width in shape for shape in shapes):
        return int(shapes[0][1])
    return width


def import_lines(factory: Any, name: str) -> tuple[str, ...]:
    """Python that binds a class or function of this process, where its file is known."""
    module = sys.modules.get(getattr(factory, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    found = getattr(module, name, None) is factory
    if not (module and path and found and getattr(factory, "__qualname__", "") == name):
        return (f"# {name}: the factory that was checked",)
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.parent and not spec.name.startswith("tests."):
        return (f"from {spec.name} import {name}",)
    return (
        "import runpy, sys",
        f"sys.path.append({str(Path(path).resolve().parent)!r})",
        f"{name} = runpy.run_path({str(Path(path).resolve())!r})[{name!r}]",
    )
