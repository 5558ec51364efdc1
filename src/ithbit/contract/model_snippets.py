"""Lines of Python that show one finding about a whole model alone: they build the model, draw the
same tokens, and print the change as a part of the largest logit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ithbit.contract.language_model import MASKED_CACHE, LanguageModel

_REDRAW_SCALE = 0.8  # of 1 / sqrt(inputs): between an initial 0.02, which hides much, and chaos


def redraw(module: nn.Module, seed: int) -> None:
    """Draw all matrices again at the usual size of trained ones.

    Initial weights of 0.02, or of 0, hide what training would show.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() > 1 and p.requires_grad:
                values = torch.randn(p.shape, generator=generator)
                p.copy_(values * (_REDRAW_SCALE / p.shape[-1] ** 0.5))


@dataclass(frozen=True)
class Snippet:
    """How the code of findings begins: the lines that build `model`, and what is done to it.

    Drawn weights depend on `seed`. `is_redrawn` says that matrices were drawn again.
    """

    build: str
    seed: int
    is_redrawn: bool = False

    def start(self, model: LanguageModel, rows: int, n_tokens: int, seed: int) -> list[str]:
        """The model and its tokens, `ids`."""
        lines = ["import torch", f"torch.manual_seed({self.seed})", *self.build.splitlines()]
        if self.is_redrawn:
            lines += [
                f"generator = torch.Generator().manual_seed({self.seed})",
                "with torch.no_grad():",
                "    for p in model.parameters():",
                "        if p.dim() > 1 and p.requires_grad:",
                "            values = torch.randn(p.shape, generator=generator)",
                f"            p.copy_(values * ({_REDRAW_SCALE} / p.shape[-1] ** 0.5))",
            ]
        place = f'"{model.device}", ' if model.device != "cpu" else ""
        lines += [
            f"model = model.to({place}{model.dtype}).eval()",
            f"generator = torch.Generator().manual_seed({seed})",
            f"ids = {draw_text(model, rows, n_tokens)}",
        ]
        return lines


def draw_text(model: LanguageModel, rows: int | str, n_tokens: int | str) -> str:
    """The expression that draws token ids."""
    place = f'.to("{model.device}")' if model.device != "cpu" else ""
    shape = f"({rows}, {n_tokens})"
    return f"torch.randint({model.low}, {model.high}, {shape}, generator=generator){place}"


def call_text(
    model: LanguageModel, ids: str, use_cache: bool = False, named: Mapping[str, str] | None = None
) -> str:
    """A call of the model, as `LanguageModel.call` makes it."""
    arguments = dict(named or {})
    if model.takes("use_cache"):
        arguments["use_cache"] = str(use_cache)
    first = f"input_ids={ids}" if model.takes("input_ids") else ids
    return f"model({', '.join([first, *(f'{key}={value}' for key, value in arguments.items())])})"


def logits_text(model: LanguageModel, call: str) -> str:
    """The logits of a call."""
    return f"{call}{model.logits_path}"


def cache_text(model: LanguageModel, out: str, cache_name: str) -> str:
    """The cache of an output."""
    return f"{out}.{cache_name}" if model.logits_path.startswith(".") else f"{out}[1]"


def causal_code(
    start: list[str], model: LanguageModel, cut: int, n_tokens: int, clause: str = "causal"
) -> str:
    """Tokens from the cut on are replaced; which outputs before it change?"""
    one = logits_text(model, call_text(model, "x"))
    again = [f"torch.manual_seed({model.seed})"] if model.seed is not None else []
    train = ["model.train()"] if clause == "train-eval" else []
    lines = [
        *start,
        *train,
        "other = ids.clone()",
        f"other[:, {cut}:] = {draw_text(model, 1, n_tokens)}[:, {cut}:]",
        "outputs = []",
        "with torch.no_grad():",
        "    for x in (ids, other):",
        *(f"        {line}" for line in again),
        f"        outputs.append({one}.double())",
        f"change = (outputs[0] - outputs[1])[:, :{cut}].abs().max()",
        "print(float(change / torch.stack(outputs).abs().max()))",
    ]
    return "\n".join(lines)


def vectors_code(start: list[str], model: LanguageModel, cut: int, vectors: str) -> str:
    """Embedded tokens from the cut on are replaced by other vectors."""
    lines = [
        *start,
        "def replace(module, args, out):",
        f"    later = {vectors}",
        f"    return torch.cat([out[:, :{cut}], later.to(out)[:, {cut}:]], 1)",
        "with torch.no_grad():",
        f"    one = {logits_text(model, call_text(model, 'ids'))}.double()",
        f'    embedding = model.get_submodule("{model.embedding_path}")',
        "    embedding.register_forward_hook(replace)",
        f"    other = {logits_text(model, call_text(model, 'ids'))}.double()",
        f"change = (one - other)[:, :{cut}].abs().max()",
        "print(float(change / torch.stack([one, other]).abs().max()))",
    ]
    return "\n".join(lines)


def decoding_code(
    start: list[str],
    model: LanguageModel,
    blocks: Sequence[int],
    cache_name: str,
    shapes: bool = False,
) -> str:
    """Blocks with a cache against all tokens at once; with `shapes`, the shapes of their logits."""
    block = call_text(model, "block", use_cache=True, named={cache_name: "cache"})
    lines = [
        *start,
        "cache, parts = None, []",
        "with torch.no_grad():",
        f"    whole = {logits_text(model, call_text(model, 'ids'))}",
        f"    for block in ids.split({list(blocks)}, dim=1):",
        f"        out = {block}",
        f"        cache = {cache_text(model, 'out', cache_name)}",
        f"        parts.append({logits_text(model, 'out')})",
        "change = (torch.cat(parts, 1) - whole).abs().max()",
        "print(float(change / whole.abs().max()))",
    ]
    if shapes:
        lines[-2:] = ["print([tuple(part.shape) for part in parts])"]
    return "\n".join(lines)


def prefix_code(start: list[str], model: LanguageModel, n_tokens: int) -> str:
    """The first tokens alone against the same within more."""
    short = logits_text(model, call_text(model, f"ids[:, :{n_tokens}]"))
    lines = [
        *start,
        "with torch.no_grad():",
        f"    whole = {logits_text(model, call_text(model, 'ids'))}[:, :{n_tokens}]",
        f"    short = {short}",
        "print(float((whole - short).abs().max() / whole.abs().max()))",
    ]
    return "\n".join(lines)


def batch_code(start: list[str], model: LanguageModel, row: int) -> str:
    """One example alone against the same in a batch."""
    alone = logits_text(model, call_text(model, f"ids[{row} : {row + 1}]"))
    lines = [
        *start,
        "with torch.no_grad():",
        f"    together = {logits_text(model, call_text(model, 'ids'))}[{row}]",
        f"    alone = {alone}[0]",
        "print(float((together - alone).abs().max() / alone.abs().max()))",
    ]
    return "\n".join(lines)


def padding_code(start: list[str], model: LanguageModel, n_padded: int, places: bool) -> str:
    """Tokens behind so many masked ones against the same tokens alone."""
    named = {"attention_mask": "mask"} | ({"position_ids": "places"} if places else {})
    padded = logits_text(model, call_text(model, "ids", named=named))
    lines = [
        *start,
        *_mask_lines(n_padded, places),
        "with torch.no_grad():",
        f"    padded = {padded}[:, {n_padded}:]",
        *_alone_lines(model, n_padded),
    ]
    return "\n".join(lines)


def padded_decoding_code(
    start: list[str],
    model: LanguageModel,
    blocks: Sequence[int],
    cache_name: str,
    n_padded: int,
    places: bool,
) -> str:
    """A padded prompt, read in blocks with a cache, against the same tokens alone at once."""
    mask = "mask[:, :end] if cache is None else None"
    if cache_name == MASKED_CACHE:
        mask = "mask[:, :end]"
    named = {cache_name: "cache", "attention_mask": mask}
    if places:
        named["position_ids"] = "places[:, start:end]"
    block = call_text(model, "ids[:, start:end]", use_cache=True, named=named)
    lines = [
        *start,
        *_mask_lines(n_padded, places),
        "cache, parts, start = None, [], 0",
        "with torch.no_grad():",
        f"    for end in torch.tensor({list(blocks)}).cumsum(0).tolist():",
        f"        out = {block}",
        f"        cache, start = {cache_text(model, 'out', cache_name)}, end",
        f"        parts.append({logits_text(model, 'out')})",
        f"    padded = torch.cat(parts, 1)[:, {n_padded}:]",
        *_alone_lines(model, n_padded),
    ]
    return "\n".join(lines)


def _mask_lines(n_padded: int, places: bool) -> list[str]:
    lines = ["mask = torch.ones_like(ids)", f"mask[:, :{n_padded}] = 0"]
    return [*lines, "places = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)"][
        : 3 if places else 2
    ]


def _alone_lines(model: LanguageModel, n_padded: int) -> list[str]:
    alone = logits_text(model, call_text(model, f"ids[:, {n_padded}:]"))
    return [
        f"    alone = {alone}",
        "print(float((padded - alone).abs().max() / alone.abs().max()))",
    ]
