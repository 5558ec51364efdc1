"""The six families built from the libraries the paper names: one run at a time, eager, untuned.

Options that the paper does not set have the library's defaults, initial weights included. Softmax
attention is Hugging Face's BERT, fed with embedded tokens: one type vector and a LayerNorm come
before the blocks, and its tables of words and positions are frozen at zero and not counted. Rotary
positions use RoFormer instead. GRU is `torch.nn.GRU`. Linear attention, which the paper implements
itself, is in its plainest form: global sums, or running sums of outer products.

Mamba2 is fla's model if the device is a GPU and fla can be imported. fla needs a GPU, so otherwise
it is Hugging Face's: the same function with the same parameters, but different random initial
weights. Its chunk is the sequence, not the default 256: the scan pads a sequence to whole chunks
and its work grows with the square of the chunk, which would be far too slow on a CPU.

After `double()` such a model computes in double precision throughout, as an oracle for outputs and
gradients.
"""

import importlib.util
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ithbit.errors import IthbitError
from ithbit.families import Task, family_named
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import N_FEATURES, n_tokens


def build(spec: ModelSpec, device: torch.device | str = "cpu", seed: int = 0) -> "Reference":
    """The library model of a spec, with its library's initial weights for a seed.

    >>> module = build(ModelSpec("lhi", "gru", n_bits=4))
    >>> module(torch.tensor([[1, 0, 0, 1]]), torch.tensor([2])).shape
    torch.Size([1])
    """
    # The libraries draw from torch's global generator; its state is restored afterwards.
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        return Reference(spec, torch.device(device)).to(device)


def dense_features(task: Task, bits: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Token features of instances, bits (batch, n) and index (batch): batch token feature.

    Type one-hot (bit, query, end), bit value, (i-1)/n and its square.

    >>> dense_features("rhi", torch.tensor([[1, 0]]), torch.tensor([2]), torch.float32).tolist()
    [[[1.0, 0.0, 0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0], \
[0.0, 1.0, 0.0, 0.0, 0.5, 0.25]]]
    """
    batch, n = bits.shape
    x = torch.zeros(batch, n_tokens(task, n), N_FEATURES, dtype=dtype, device=bits.device)
    first, query = (0, n) if task == "rhi" else (1, 0)
    x[:, first : first + n, 0] = 1
    x[:, first : first + n, 3] = bits.to(dtype)
    x[:, query, 1] = 1
    x[:, query, 4] = (index - 1).to(dtype) / n
    x[:, query, 5] = x[:, query, 4] ** 2
    if task == "lhi":
        x[:, -1, 2] = 1
    return x


class Reference(nn.Module):
    """Features and positions, a library's blocks, one logit at the last token."""

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        super().__init__()
        self.task = spec.task
        self.embed = nn.Linear(N_FEATURES, spec.d_model, bias=False)
        self.positions = _positions(spec)
        self.body = _body(spec, device)
        self.head = nn.Linear(spec.d_model, 1)

    def forward(self, bits: Tensor, index: Tensor) -> Tensor:
        """The logit of answer 1, batch, for bits (batch, n) and index (batch) from 1."""
        dtype = self.embed.weight.dtype
        with _KeepDouble() if dtype == torch.float64 else nullcontext():
            x = self.embed(dense_features(self.task, bits, index, dtype))
            if self.positions is not None:
                x = x + self.positions(torch.arange(x.shape[1], device=x.device))
            return self.head(self.body(x)[:, -1]).squeeze(-1)

    def double(self) -> Self:
        """In float64 throughout: the tables of sines, made in single precision, are rebuilt.

        >>> oracle = build(ModelSpec("rhi", "gru", n_bits=2)).double()
        >>> oracle(torch.tensor([[0, 1]]), torch.tensor([1])).dtype
        torch.float64
        """
        super().double()
        for part in self.modules():
            if isinstance(part, Sinusoidal):
                table = part.get_buffer("table")
                pair = torch.stack(waves(*table.shape), -1)
                part.register_buffer("table", pair.flatten(1).to(table.device))
            elif type(part).__name__ == "RoFormerSinusoidalPositionalEmbedding":
                assert isinstance(part, nn.Embedding)
                part.weight.data = torch.cat(waves(*part.weight.shape), -1).to(part.weight.device)
        return self


def _positions(spec: ModelSpec) -> nn.Module | None:
    """The encoding added to the embedded tokens, if any; rotary positions are part of the body."""
    if spec.positions == "polynomial":
        return Polynomial(spec)
    if spec.positions == "learned":
        return nn.Embedding(n_tokens(spec.task, 2 * spec.n_bits), spec.d_model)
    if spec.positions == "sinusoidal":
        return Sinusoidal(spec)
    return None


class Polynomial(nn.Module):
    """(p, p^2) through a bias-free map, p = t / (L - 1) for training length L."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.last = n_tokens(spec.task, spec.n_bits) - 1
        self.project = nn.Linear(2, spec.d_model, bias=False)

    def forward(self, positions: Tensor) -> Tensor:
        p = positions.to(self.project.weight.dtype) / self.last
        return self.project(torch.stack([p, p**2], dim=-1))


class Sinusoidal(nn.Module):
    """Sine and cosine of t / 10000^(2j/d), interleaved, as in the first transformer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        table = torch.stack(waves(n_tokens(spec.task, 2 * spec.n_bits), spec.d_model), -1)
        self.register_buffer("table", table.flatten(1).float())

    def forward(self, positions: Tensor) -> Tensor:
        return self.get_buffer("table")[positions]


def waves(rows: int, d: int) -> tuple[Tensor, Tensor]:
    """Sines and cosines of t / 10000^(2j/d), t a row, in float64."""
    t = torch.arange(rows, dtype=torch.float64)[:, None]
    angle = t / 10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    return angle.sin(), angle.cos()


def _body(spec: ModelSpec, device: torch.device) -> nn.Module:
    """The blocks: embedded tokens -> states, both batch token dim."""
    kind = family_named(spec.family).kind
    if kind not in (*_OF_TRANSFORMERS, *_OF_TORCH):
        raise IthbitError(f"there is no reference model for the family {spec.family}")
    if not has_reference(spec):
        raise IthbitError(
            f"the reference of {spec.family} needs transformers, which is not installed; "
            "install ithbit[reference]"
        )
    if kind == "softmax":
        return _roformer(spec) if spec.positions == "rotary" else _bert(spec)
    if kind == "linear":
        return nn.Sequential(*(LinearBlock(spec) for _ in range(spec.n_layers)))
    if kind == "gru":
        return ReferenceGru(spec.d_model, spec.d_model, spec.n_layers, batch_first=True)
    return _mamba2(spec, device)


class ReferenceGru(nn.GRU):
    """`nn.GRU` that returns only its states."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        states, _ = super().forward(x)
        return states


class FromEmbeddings(nn.Module):
    """A library model that takes embedded tokens and returns its last hidden states.

    With `mask`, it gets an explicit causal mask instead of relying on its own.
    """

    def __init__(self, model: nn.Module, mask: bool = False) -> None:
        super().__init__()
        self.model = model
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        if not self.mask:
            return self.model(inputs_embeds=x).last_hidden_state
        ahead = x.new_full((1, 1, x.shape[1], x.shape[1]), -torch.inf).triu(1)
        return self.model(inputs_embeds=x, attention_mask=ahead).last_hidden_state


class LinearBlock(nn.Module):
    """One pre-norm block: linear attention with ELU + 1 features, then a feed-forward part.

    With phi = elu + 1, the output at a token with query q is the sum of phi(q).phi(k) v over the
    tokens it sees, divided by the sum of phi(q).phi(k) plus 1e-6.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        d = spec.d_model
        self.causal = family_named(spec.family).causal
        self.n_heads = spec.n_heads
        self.norm1 = nn.LayerNorm(d)
        self.query = nn.Linear(d, d, bias=False)
        self.key = nn.Linear(d, d, bias=False)
        self.value = nn.Linear(d, d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.norm2 = nn.LayerNorm(d)
        self.up = nn.Linear(d, spec.d_ff)
        self.down = nn.Linear(spec.d_ff, d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self._attend(self.norm1(x)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def _attend(self, x: Tensor) -> Tensor:
        heads = (*x.shape[:2], self.n_heads, -1)  # batch token head dim
        q = F.elu(self.query(x).view(heads)) + 1
        k = F.elu(self.key(x).view(heads)) + 1
        v = self.value(x).view(heads)
        if self.causal:
            kv = torch.einsum("bthk,bthv->bthkv", k, v).cumsum(1)
            above = torch.einsum("bthk,bthkv->bthv", q, kv)
            below = torch.einsum("bthk,bthk->bth", q, k.cumsum(1))
        else:
            kv = torch.einsum("bthk,bthv->bhkv", k, v)
            above = torch.einsum("bthk,bhkv->bthv", q, kv)
            below = torch.einsum("bthk,bhk->bth", q, k.sum(1))
        mixed = above / (below.unsqueeze(-1) + 1e-6)
        return mixed.flatten(2)


_OF_TRANSFORMERS, _OF_TORCH = ("softmax", "mamba2"), ("linear", "gru")


def has_reference(spec: ModelSpec) -> bool:
    """Whether there is a reference model for the family, and its library is installed."""
    kind = family_named(spec.family).kind
    has_transformers = importlib.util.find_spec("transformers") is not None
    return kind in _OF_TORCH or (kind in _OF_TRANSFORMERS and has_transformers)


def _encoder_settings(spec: ModelSpec) -> dict[str, int | float | bool]:
    """What the paper sets in BERT and RoFormer; vocabularies as small as possible."""
    return {
        "vocab_size": 1,
        "type_vocab_size": 1,
        "max_position_embeddings": n_tokens(spec.task, 2 * spec.n_bits),
        "hidden_size": spec.d_model,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": spec.n_heads,
        "intermediate_size": spec.d_ff,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "is_decoder": family_named(spec.family).causal,  # the library's term for a causal mask
        "use_cache": False,
    }


def _bert(spec: ModelSpec) -> nn.Module:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**_encoder_settings(spec)), add_pooling_layer=False)
    # The words are never used; the positions are always added, so zeros leave only ours.
    for table in (model.embeddings.word_embeddings, model.embeddings.position_embeddings):
        nn.init.zeros_(table.weight).requires_grad_(False)
    return FromEmbeddings(model)


def _roformer(spec: ModelSpec) -> nn.Module:
    from transformers import RoFormerConfig, RoFormerModel

    # In several versions, including the paper's, RoFormer as a decoder masks nothing.
    model = RoFormerModel(RoFormerConfig(**_encoder_settings(spec) | {"is_decoder": False}))
    nn.init.zeros_(model.embeddings.word_embeddings.weight).requires_grad_(False)
    return FromEmbeddings(model, mask=family_named(spec.family).causal)


def _mamba2(spec: ModelSpec, device: torch.device) -> nn.Module:
    settings = {  # what the paper sets, in fla's and Hugging Face's version alike
        "vocab_size": 1,
        "hidden_size": spec.d_model,
        "num_hidden_layers": spec.n_layers,
        "head_dim": spec.d_head,
        "state_size": spec.d_state,
        "expand": 1,
        "conv_kernel": 3,
        "use_cache": False,
    }
    if device.type == "cuda" and importlib.util.find_spec("fla") is not None:
        from fla.models import Mamba2Config, Mamba2Model

        settings |= {"fuse_norm": False, "fuse_cross_entropy": False}
        return FromEmbeddings(Mamba2Model(Mamba2Config(**settings)))
    from transformers import Mamba2Config, Mamba2Model

    config = Mamba2Config(
        **settings,
        num_heads=spec.n_heads,
        n_groups=1,  # fla's default, which the published parameter count confirms
        chunk_size=n_tokens(spec.task, spec.n_bits),
        pad_token_id=None,  # the default special tokens lie outside a vocabulary of one
        bos_token_id=None,
        eos_token_id=None,
    )
    return FromEmbeddings(Mamba2Model(config))


class _KeepDouble(TorchFunctionMode):
    """Context in which a library's casts to float32 become casts to float64: Mamba2 casts its
    states whatever the model's dtype."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.float:
            func = Tensor.double
        elif func is Tensor.to:
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
            kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
        return func(*args, **kwargs)
