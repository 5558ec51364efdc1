"""Small causal language models with a cache, correct or with one known fault each, modelled on
faults that models had."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, LONGEST = 40, 16, 1100


class AttentionModel(nn.Module):
    """One layer of attention with absolute positions, and its keys and values as a cache."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: tuple[Tensor, Tensor] | None = None,
        use_cache: bool = False,
    ) -> Any:
        n, past = input_ids.shape[1], 0 if past_key_values is None else past_key_values[0].shape[1]
        if position_ids is None:
            first = 0 if self.fault == "positions ignore the cache" else past
            position_ids = torch.arange(first, first + n)[None]
        x = self.embed(input_ids) + self.places(position_ids)
        if self.fault == "batch mixes":
            x = x + 0.01 * x.mean(0)
        if self.fault == "sees the mean of 32":
            blocks = F.pad(x, (0, 0, 0, -n % 32)).unflatten(1, (-1, 32)).mean(2)
            x = x + 1e-3 * blocks.repeat_interleave(32, 1)[:, :n]
        q, k, v = self.qkv(x).chunk(3, -1)
        if past_key_values is not None:
            k, v = (torch.cat(pair, 1) for pair in zip(past_key_values, (k, v), strict=True))
        scores = q @ k.mT / WIDTH**0.5
        if self.fault == "scaled by length":
            scores = scores * (1 + 1e-3 * k.shape[1])
        n_keys = k.shape[1]
        later = torch.arange(n_keys) > torch.arange(n)[:, None] + n_keys - n
        scores = scores.masked_fill(later, -torch.inf)
        if attention_mask is not None:
            masked = attention_mask[:, None, -n_keys:] == 0
            worth = -5.0 if self.fault == "padding leaks" else torch.finfo(x.dtype).min
            scores = scores + masked * worth
        x = x + scores.softmax(-1) @ v
        if self.fault == "cache off by one" and k.shape[1] > 1:
            k, v = k[:, 1:], v[:, 1:]
        return SimpleNamespace(logits=self.head(x), past_key_values=(k, v) if use_cache else None)


class RecurrentModel(nn.Module):
    """A recurrence whose state is its cache; it gives a tuple."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.step = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.calls = 0

    def forward(
        self, ids: Tensor, state: Tensor | None = None, use_cache: bool = False
    ) -> tuple[Tensor, Tensor]:
        x, self.calls = self.embed(ids), self.calls + 1
        if state is None or (self.fault == "several tokens forget" and ids.shape[1] > 1):
            state = x.new_zeros(len(x), WIDTH)
        if self.fault == "counts calls":
            x = x + 0.01 * self.calls
        if self.fault == "random":
            x = x + 0.01 * torch.rand(())
        if self.fault == "changes its input":
            ids += 1
        states = []
        for t in range(ids.shape[1]):
            state = torch.tanh(self.step(state) + x[:, t])
            states.append(state)
        logits = self.head(torch.stack(states, 1))
        if self.fault == "one token mixes rows" and ids.shape[1] == 1:
            logits = logits + logits.transpose(0, 1)
        return logits, state
