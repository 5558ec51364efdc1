"""The recall tasks, and how each comes down to the counting theorem.

A *recall task* is a table: a prefix x and a query q determine an answer. It is *free* for n queries
and V values if all V^n answer vectors occur. The counting theorem uses nothing else, so a bound for
one free table is a bound for every task that contains it.

    rhi, lhi            n symbols of V values, an index is the query (V = 2: the paper's tasks)
    mqar                n pairs of a key and a value, in tokens of their own; then one of the keys
    induction           n pairs of tokens over a fixed alphabet of V symbols, then a symbol: what
                        followed it when it occurred last? V - 1 answers, for any split only
    induction-growing   the same over n symbols, with 2n - 2 tokens before the last: n^(n-1) rooted
                        trees for n queries, of which n^(n-2-e) at least have the last e pairs
                        fixed; for any split n - 1 queries of n - 1 values
    copy                n symbols of V values, then once more, each asked for in turn: no bound in
                        real arithmetic (`ithbit.theory.recall.copying`)

*Prefix and query.* The query is what follows the prefix, at any depth: the stage list of RHI. *Any
split.* In one layer of attention, or with fixed filters (an SSM with constant A), the token that is
read is fixed, and the other positions are split in any way: the stage list of LHI. docs/recall.md
has the free table of each task for both, and the proofs. With two of V values alone a task is the
binary one, so bounds for bits hold for V values too. The index of rhi and the keys of mqar may be
words (`ithbit.theory.bounds.stages`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ithbit.errors import SpecError, as_int, one_of
from ithbit.families import TASKS, Task
from ithbit.theory.architecture import Architecture
from ithbit.theory.bounds import Route, all_routes, conditions, letter, state_route
from ithbit.theory.bounds.accuracy import accuracy_bound
from ithbit.theory.bounds.counting import bracketed, log2_answers
from ithbit.theory.bounds.stages import ONE_TOKEN, Query, fixed_bits, stages
from ithbit.theory.bounds.state import state_bits, values_held

MOST_VALUES = 10**9

# What n counts; the usual number of values, 0 if it is n; the least number; the stage lists.
_TASKS: dict[str, tuple[str, int, int, tuple[Task, ...]]] = {
    "rhi": ("symbols", 2, 2, ("rhi",)),
    "lhi": ("symbols", 2, 2, ("lhi",)),
    "mqar": ("pairs", 4096, 2, ("rhi", "lhi")),
    "induction": ("pairs", 3, 3, ("lhi",)),
    "induction-growing": ("symbols", 0, 0, ("rhi", "lhi")),
    "copy": ("symbols", 2, 2, ()),
}
RECALL_ONLY = tuple(name for name in _TASKS if name not in TASKS)
_SPLITS: dict[Task, str] = {"rhi": "prefix and query", "lhi": "one layer, any split"}


@dataclass(frozen=True)
class Recall:
    """A recall task with its number of values, V; `recall` checks them."""

    name: str
    values: int  # 0 if it is n
    query: Query = ONE_TOKEN

    @property
    def binary(self) -> bool:
        """Whether it is one of the paper's tasks."""
        return self.name in TASKS and self.values == 2 and self.query == ONE_TOKEN

    @property
    def counts(self) -> str:
        """What n counts, in words."""
        return "bits" if self.binary else _TASKS[self.name][0]

    @property
    def text(self) -> str:
        what = "alphabet" if self.name == "induction" else "values"
        return f"{self.name} · {what} {self.values:,}" if self.values else self.name

    def splits(self, arch: Architecture) -> list[Task]:
        """The tasks whose stage lists it has for such layers: of LHI, if any split will do."""
        filters = arch.attention or (arch.kind == "ssm" and arch.transition == "constant")
        of_lhi = self.name == "lhi" or (arch.n_layers == 1 and filters)
        return [like for like in _TASKS[self.name][3] if like == "rhi" or of_lhi]

    @property
    def answers(self) -> int:
        """How many answers there are: of an alphabet, not the symbol that is asked for."""
        return self.values - (self.name == "induction")

    def held(self, like: Task, arch: Architecture) -> int:
        """How many answers are held fixed; a pair has two tokens or more."""
        fixed = fixed_bits(like, arch)
        return fixed if self.name in (*TASKS, "copy") else -(-fixed // 2)


def recall(
    name: str, values: int | None = None, query_tokens: int = 1, query_symbols: int | None = None
) -> Recall:
    """The task with this name and this many values, by default its usual number, and a query of so
    many tokens, each one of so many symbols, by default of any number.

    >>> recall("mqar").values, recall("rhi", 16).text
    (4096, 'rhi · values 16')
    """
    _, usual, least, _ = _TASKS[one_of("unknown task", name, tuple(_TASKS))]
    if values is not None and not usual:
        raise SpecError(f"{name} has as many values as symbols, which n counts; leave values out")
    values = usual if values is None else _between(f"values for {name}", values, least)
    query = Query(_between("tokens of the query", query_tokens, 1))
    if query_symbols is not None:
        query = replace(query, symbols=_between("symbols of the query", query_symbols, 2))
    if query != ONE_TOKEN and name not in ("rhi", "mqar"):
        raise SpecError(f"queries of several tokens are for rhi and mqar, not for {name}")
    return Recall(name, values, query)


def _between(what: str, value: Any, least: int) -> int:
    value = as_int(what, value)
    if not least <= value <= MOST_VALUES:
        bound = f"at least {least}" if value < least else f"at most {MOST_VALUES:,}"
        raise SpecError(f"{what} must be {bound}, got {value:,}")
    return int(value)


def recall_routes(task: Recall, arch: Architecture, bits: int = 32) -> tuple[Route, ...]:
    """Every route to a bound, tightest first.

    >>> from ithbit.theory.architecture import architecture
    >>> [route.n_star for route in recall_routes(recall("mqar"), architecture("rnn"))][:2]
    [42, 42]
    """
    if bits < 1:
        raise SpecError(f"a number has at least 1 bit, got {bits}")
    routes = _routes(task, arch, bits)
    return tuple(sorted(routes, key=lambda route: (route.n_star, route.cited)))


def _routes(task: Recall, arch: Architecture, bits: int) -> Iterator[Route]:
    for like in task.splits(arch):
        held, where = task.held(like, arch), "" if task.name in TASKS else f"; {_SPLITS[like]}"
        if not task.values:
            yield from _trees(like, arch, bits, held, where)
            continue
        more = held - fixed_bits(like, arch)
        for route in all_routes(like, arch, bits, task.answers, task.query):
            yield replace(route, n_star=route.n_star + more, theorem=route.theorem + where)
    kept = state_bits("rhi", arch, bits) if task.name == "copy" else None
    if kept is not None:
        yield state_route(values_held(kept, task.values) + fixed_bits("rhi", arch), bits)


def _trees(like: Task, arch: Architecture, bits: int, held: int, where: str) -> Iterator[Route]:
    """Alphabets: doubles, with room for rounding, so n* + 1 is excluded and n* hardly."""
    slots = 0 if like == "rhi" else 1  # n queries, or n - 1
    free = 2 + held if held else 1  # n^(n-1) trees or n^(n-2-e); (n - 1)^(n-1) tables

    def largest(log2_answers_at: Callable[[int], float]) -> int:
        def past(n: int) -> bool:
            tables = (n - free) * math.log2(max(1, n - slots)) * (1 - 2.0**-40)
            return n > 2 and log2_answers_at(n) < tables

        return bracketed(past, 1, 2, bits=80)[1] - 1

    if counted := stages(like, arch, 3):
        *hidden, last = counted

        def log2_count(n: int) -> float:  # without hidden units p depends on V
            readout = (
                (replace(last, values=n - slots),) if hidden else stages(like, arch, n - slots)
            )
            return log2_answers((*hidden, *(readout or ())), n - slots)

        named = letter(counted)
        theorem = f"the counting theorem {named}, counting rooted trees{where}"
        yield Route(f"counting {named}", largest(log2_count), theorem, False, conditions(arch))
    if (kept := state_bits(like, arch, bits)) is not None:
        yield state_route(largest(lambda n: kept), bits)


def recall_accuracy(task: Recall, arch: Architecture, n: int) -> float | None:
    """An upper bound on the expected accuracy at n, answers independent and uniform; None if no
    bound is known or the bound says nothing. Answers that are held fixed count as right."""
    least = 1.0
    for like in task.splits(arch) if task.values else ():
        counted, held = stages(like, arch, task.answers, task.query), task.held(like, arch)
        if counted and n > held:
            share = held / n
            bound = share + (1 - share) * accuracy_bound(counted, n - held)
            least = min(least, bound * (1 + 2.0**-50))
    return least if least < 1 else None
