"""A causal language model as it is scored and decoded: token ids in, logits out; with a cache, a
mask and positions where its forward takes them.

Any `nn.Module` whose first argument is token ids (batch, token) and that gives logits (batch,
token, vocabulary): a tensor, a tuple that starts with it, or an object with `logits`, as Hugging
Face's models give it. What it takes by name is read from the signature of its forward.

A *packed* input has the embedded tokens and, as its last column, their ids, so that one tensor
(row, token, number) holds all that a model reads: a hook puts the vectors in the place of what the
embedding gives. By it, later tokens can be vectors that no id has, and can be moved a little.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ithbit.contract.comparison import SMALL_STEP, apart, jittered, unit_of
from ithbit.errors import LayerError
from ithbit.models.user_code import FAILURES

# Under these names models return what they keep of the tokens so far, and take it again.
CACHES = ("past_key_values", "cache_params", "state", "mems", "past_buckets_states", "cache")
_OUTPUTS = ("logits", "last_hidden_state")
MASKED_CACHE = CACHES[0]  # with it the mask of all tokens so far is passed again; with a state, not
_FEWEST_IDS = 4  # that differ from all special tokens
_STEP = 1e-7  # by which the precision inside is measured


@dataclass(frozen=True)
class Decoded:
    """Logits of a prompt read block by block; `wrong_shape` is the size of a block and the shape of
    its logits, where reading ended because that is not a row of logits per token."""

    logits: Tensor
    cache_name: str
    wrong_shape: tuple[int, tuple[int, ...]] | None = None


class NoCacheError(Exception):
    """A model that returns nothing by which decoding could go on."""


class LanguageModel:
    """A module, called so that nothing but the given tokens can matter unless the module makes it.

    `low` and `high` bound the ids that are drawn; special tokens lie outside.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype, device: str = "cpu") -> None:
        self.module, self.dtype, self.device = module.to(device, dtype).eval(), dtype, device
        self.arguments = tuple(inspect.signature(module.forward).parameters)
        self.embedding = input_embedding(module)
        self.low, self.high = token_range(module, self.embedding)
        self.seed: int | None = None  # of dropout, where the module is in training mode
        self.beat: Callable[[str], None] = lambda text: None  # hears what is called next
        self._accepted: dict[int, bool] = {}
        self.logits_path = ""  # how code finds the logits in what a call returns

    def accepts(self, n_tokens: int) -> bool:
        """Whether it takes so many tokens."""
        if n_tokens not in self._accepted:
            try:
                self.score(torch.full((1, n_tokens), self.low))
                self._accepted[n_tokens] = True
            except FAILURES:
                self._accepted[n_tokens] = False
        return self._accepted[n_tokens]

    def takes(self, name: str) -> bool:
        """Whether the forward has an argument of that name."""
        return name in self.arguments

    def draw(self, rows: int, n_tokens: int, generator: torch.Generator) -> Tensor:
        """Random token ids."""
        return torch.randint(self.low, self.high, (rows, n_tokens), generator=generator)

    def call(self, ids: Tensor, use_cache: bool = False, **named: Any) -> tuple[Tensor, Any, str]:
        """Logits, the cache (None if there is none), and the name of the cache."""
        if self.takes("use_cache"):
            named["use_cache"] = use_cache
        named = {key: self._placed(value) for key, value in named.items()}
        if self.seed is not None:
            torch.manual_seed(self.seed)
        ids = self._placed(ids)
        self.beat(f"it reads tokens of shape {tuple(ids.shape)}")
        by_name = {"input_ids": ids} if self.takes("input_ids") else {}
        out = self.module(*(() if by_name else (ids,)), **by_name, **named)
        self.logits_path = path_of_logits(out)
        return logits_of(out), *cache_of(out, self.arguments)

    @property
    def embedding_path(self) -> str:
        """The name of the embedding within the module."""
        parts = self.module.named_modules()
        return next((name for name, part in parts if part is self.embedding), "")

    @torch.no_grad()
    def score(self, ids: Tensor, **named: Any) -> Tensor:
        """Logits of all tokens at once, without a cache."""
        logits = self.call(ids, **named)[0]
        if logits.dim() != 3 or logits.shape[:2] != ids.shape:
            raise LayerError(
                f"logits must be (batch, token, vocabulary), got shape {tuple(logits.shape)} for "
                f"token ids of shape {tuple(ids.shape)}"
            )
        return logits.cpu()

    @torch.no_grad()
    def decode(
        self, ids: Tensor, blocks: Sequence[int], mask: Tensor | None = None, places: bool = False
    ) -> Decoded:
        """Logits of blocks of tokens read one after the other with a cache. With `places`, every
        block's positions are passed; they and the mask go with each block as in `generate`."""
        cache, name, start, parts = None, "", 0, []
        for size in blocks:
            end, named = start + size, {}
            if mask is not None and (cache is None or name == MASKED_CACHE):
                named["attention_mask"] = mask[:, :end]
            if places:
                named["position_ids"] = positions_of(ids[:, :end], mask)[:, start:]
            if cache is not None:
                named[name] = cache
            logits, cache, name = self.call(ids[:, start:end], use_cache=True, **named)
            if cache is None:
                raise NoCacheError("it returns no cache")
            if logits.dim() != 3 or logits.shape[:2] != (len(ids), size):
                return Decoded(logits, name, (size, tuple(logits.shape)))
            parts.append(logits.cpu())
            start = end
        return Decoded(torch.cat(parts, 1), name)

    def pack(self, ids: Tensor) -> Tensor:
        """The packed input of token ids."""
        assert self.embedding is not None
        seen: list[Tensor] = []
        hook = self.embedding.register_forward_hook(lambda module, args, out: seen.append(out))
        try:
            self.score(ids)
        finally:
            hook.remove()
        vectors = next((each for each in seen if each.shape[:2] == ids.shape), None)
        if vectors is None:
            raise LayerError("its embedding gives no vector for every token")
        return torch.cat([vectors.detach().double().cpu(), ids[..., None].double()], -1)

    def score_packed(self, packed: Tensor) -> Tensor:
        """Logits of a packed input."""
        with self.embedded(packed[..., :-1]):
            return self.score(packed[..., -1].long())

    @contextmanager
    def embedded(self, vectors: Tensor) -> Iterator[None]:
        """Context in which the embedding gives these vectors for tokens of their shape."""
        assert self.embedding is not None
        given = vectors.to(self.device, self.dtype)

        def replace(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            return given.to(out.dtype) if out.shape == given.shape else out

        hook = self.embedding.register_forward_hook(replace)
        try:
            yield
        finally:
            hook.remove()

    def _placed(self, value: Any) -> Any:
        return value.to(self.device) if isinstance(value, Tensor) else value


def move_packed(packed: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """A packed input whose vectors are moved by `size` of themselves; ids stay."""
    return torch.cat([jittered(packed[..., :-1], size, generator), packed[..., -1:]], -1)


def response(model: LanguageModel, ids: Tensor, seed: int) -> Tensor:
    """How much each output changes (row, token) if all embedded tokens move by `SMALL_STEP`, at
    most at it and those before it."""
    if model.embedding is None:
        return model.score(ids).double().abs().amax(-1) * SMALL_STEP
    packed, generator = model.pack(ids), torch.Generator().manual_seed(seed)
    base = model.score_packed(packed)
    moved = torch.zeros(ids.shape, dtype=torch.float64)
    for _ in range(2):
        again = model.score_packed(move_packed(packed, SMALL_STEP, generator))
        moved = moved.maximum(apart(again, base).nan_to_num(0.0, 0.0, 0.0).amax(-1))
    return moved.cummax(1).values


def precision_inside(model: LanguageModel, ids: Tensor) -> float:
    """The unit of the arithmetic inside: a model in float64 may well normalise in float32.

    Two steps of 1e-7 change twice as much as one, unless what is between rounds to float32.
    """
    if model.dtype != torch.float64:
        return unit_of(model.dtype)
    if model.embedding is None:
        return unit_of(torch.float32)
    packed = model.pack(ids)
    base = model.score_packed(packed)
    once, twice = (
        model.score_packed(torch.cat([packed[..., :-1] * (1 + step), packed[..., -1:]], -1)) - base
        for step in (_STEP, 2 * _STEP)
    )
    smooth = (twice - 2 * once).abs().max() <= 0.01 * twice.abs().max()
    return unit_of(torch.float64 if smooth else torch.float32)


def positions_of(ids: Tensor, mask: Tensor | None) -> Tensor:
    """The positions that Hugging Face's `generate` passes: they count from the first token that is
    not masked.

    >>> positions_of(torch.zeros(1, 4), torch.tensor([[0, 0, 1, 1]])).tolist()
    [[0, 0, 0, 1]]
    """
    if mask is None:
        return torch.arange(ids.shape[1]).expand(ids.shape)
    return (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)


def logits_of(out: Any) -> Tensor:
    """The logits of what a model returns, or its last hidden states if it has no head."""
    logits = next((getattr(out, name) for name in _OUTPUTS if hasattr(out, name)), out)
    if isinstance(logits, tuple | list) and logits:
        logits = logits[0]
    if not isinstance(logits, Tensor):
        raise LayerError(
            f"it returns {type(out).__name__} without logits; return logits, a tuple that starts "
            "with them, or an object with `logits`"
        )
    return logits


def path_of_logits(out: Any) -> str:
    """How code finds the logits in what a model returns."""
    name = next((name for name in _OUTPUTS if hasattr(out, name)), "")
    found = getattr(out, name) if name else out
    return (f".{name}" if name else "") + ("[0]" if isinstance(found, tuple | list) else "")


def cache_of(out: Any, arguments: Sequence[str]) -> tuple[Any, str]:
    """The cache of what a model returns and the name by which it is passed again."""
    for name in CACHES:
        if name in arguments and getattr(out, name, None) is not None:
            return getattr(out, name), name
    if isinstance(out, tuple) and len(out) > 1:  # (logits, cache)
        name = next((name for name in CACHES if name in arguments), "")
        return (out[1], name) if name else (None, "")
    return None, ""


def input_embedding(module: nn.Module) -> nn.Module | None:
    """The module that turns token ids into vectors, if there is one to hook."""
    getter = getattr(module, "get_input_embeddings", None)
    try:
        found = getter() if getter is not None else None
    except (AttributeError, NotImplementedError):
        found = None
    if isinstance(found, nn.Module):
        return found
    return next((part for part in module.modules() if isinstance(part, nn.Embedding)), None)


def token_range(module: nn.Module, embedding: nn.Module | None) -> tuple[int, int]:
    """The longest range of ids free of the special tokens that the configuration names."""
    config = getattr(module, "config", None)
    getter = getattr(config, "get_text_config", None)
    text = getter() if getter is not None else config
    sizes = [
        getattr(text, "vocab_size", None),
        getattr(embedding, "num_embeddings", None),
    ]
    known = [size for size in sizes if isinstance(size, int)]
    if not known:
        raise LayerError(
            "the number of tokens is unknown: give the model an nn.Embedding, or a `config` with "
            "`vocab_size`"
        )
    n_ids = min(known)
    special: set[int] = set()
    for holder in (config, text):
        for name, value in vars(holder).items() if holder is not None else ():
            if name.endswith(("_token_id", "_token_ids", "_token_index")):
                values = value if isinstance(value, list | tuple) else [value]
                special |= {each for each in values if isinstance(each, int) and 0 <= each < n_ids}
    borders = [-1, *sorted(special), n_ids]
    low, high = max(
        ((one + 1, other) for one, other in pairwise(borders)),
        key=lambda pair: pair[1] - pair[0],
    )
    if high - low < _FEWEST_IDS:
        raise LayerError(f"too few token ids are free to draw: {max(high - low, 0)} of {n_ids}")
    return low, high
