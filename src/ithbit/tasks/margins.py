"""What a right answer is: the one rule for every evaluator.

The *margin* of an input is the logit of answer 1 if the answer is 1, and its negative if it is 0. A
logit that is not finite is no answer: its margin is -inf, so that no comparison, minimum or sort
can take it for a right one. An answer is right if its margin is above 0.

The paper's accuracy differs from that at 0 only: it answers 1 where sigmoid(logit) >= 0.5 in
floats, which includes logits within rounding of 0.
"""

import math

import torch
from torch import Tensor


def margin_of(logit: Tensor, answer: Tensor) -> Tensor:
    """The margin of each answer, of any shape; -inf where the logit is NaN or infinite.

    >>> margin_of(torch.tensor([2.0, 2.0, math.nan, math.inf]), torch.tensor([1, 0, 0, 1])).tolist()
    [2.0, -2.0, -inf, -inf]
    """
    margin = torch.where(answer == 1, logit, -logit)
    return torch.where(logit.isfinite(), margin, -math.inf)


def counts_as_right(logit: Tensor, answer: Tensor) -> Tensor:
    """Whether each answer counts in the paper's accuracy; never where the logit is not finite.

    >>> logit = torch.tensor([2.0, -2.0, 0.0, math.nan, -math.inf])
    >>> counts_as_right(logit, torch.tensor([1, 0, 1, 0, 0])).tolist()
    [True, True, True, False, False]
    """
    return logit.isfinite() & ((logit.sigmoid() >= 0.5) == (answer == 1))
