from torch import Tensor

from ithbit.kernels.plan import Plan


def programs(plan: Plan) -> int:
    raise NotImplementedError


def backward(
    plan: Plan,
    values: Tensor,
    keys: Tensor,
    first: Tensor,
    count: int,
    losses: Tensor,
    partials: Tensor,
) -> None:
    raise NotImplementedError


def forward(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int, logits: Tensor
) -> None:
    raise NotImplementedError
