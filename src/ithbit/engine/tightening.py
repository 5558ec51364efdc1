"""When consistency counts: its weights and the learning rate in each epoch of a run.

A run first *solves* its task, as long as that takes, and as if it were trained without consistency:
up to its first perfect epoch it is that very run. From then on it *tightens*: for `_PAIR_EPOCHS`
epochs by pairs, then for `_FLIP_EPOCHS` more by single flips too, and ends after the next perfect
epoch. Their weight grows geometrically, a step after each epoch whose training loss is low; after
one whose loss is not, it falls back half of the steps, and with flips stays below where it was.
The learning rate falls along a cosine meanwhile, from half of the protocol's. A run whose training
loss jumps goes back to solving, and tightens the next time at half the rate.

All of it follows from the run's history alone, so nothing more is stored, and more epochs continue
a run that has not finished.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ithbit.spec import Protocol
from ithbit.store.records import Epoch

_PAIR_EPOCHS, _FLIP_EPOCHS = 12, 36  # after 12 of flips, one of three runs at n = 64 stayed open
_FIRST, _LAST = 1.0, 1000.0  # weights, in units of the protocol's consistency
_STEPS = 11  # from the first weight to the last
_LOW = 0.01  # training loss below which the weight grows
_LOST = 0.1  # and above which a run is no longer solved
_RATE, _LEAST_RATE = 0.5, 0.01  # of the protocol's learning rate: at first, and the least


@dataclass(frozen=True)
class Tightening:
    """How far a run has come: epochs of tightening behind it, None while it solves; steps by which
    the weight has grown; and how often the run went back to solving."""

    done: int | None = None
    grown: int = 0
    setbacks: int = 0
    perfect: bool = False  # whether the last epoch was

    @classmethod
    def after(cls, history: Sequence[Epoch]) -> "Tightening":
        """The state after these epochs.

        >>> from dataclasses import replace
        >>> solved = Epoch(1, 0.01, 0.01, 1.0, 1e-3, 0.1)
        >>> Tightening.after([solved, replace(solved, train_loss=0.001)])
        Tightening(done=1, grown=1, setbacks=0, perfect=True)
        """
        done, grown, most, setbacks = None, 0, _STEPS, 0
        for epoch in history:
            if done is None:
                done = 0 if epoch.held_out_accuracy == 1.0 else None
            elif epoch.train_loss > _LOST:
                done, grown, most, setbacks = None, 0, _STEPS, setbacks + 1
            else:
                done += 1
                if epoch.train_loss < _LOW:
                    grown = min(grown + 1, most)
                elif grown:
                    most = grown - 1 if done > _PAIR_EPOCHS else most
                    grown //= 2
        return cls(done, grown, setbacks, bool(history) and history[-1].held_out_accuracy == 1.0)

    @property
    def finished(self) -> bool:
        if self.done is None or not self.perfect:
            return False
        return self.done >= _PAIR_EPOCHS + _FLIP_EPOCHS

    @property
    def epochs_left(self) -> int | None:
        """The fewest epochs until the run ends; None while it solves."""
        return None if self.done is None else max(1, _PAIR_EPOCHS + _FLIP_EPOCHS - self.done)

    def weights(self, protocol: Protocol) -> tuple[float, float]:
        """The weights of pairs and of single flips in the next epoch."""
        if self.done is None:
            return 0.0, 0.0
        weight = _FIRST * (_LAST / _FIRST) ** (self.grown / _STEPS) * protocol.consistency
        return weight, weight if self.done >= _PAIR_EPOCHS else 0.0

    def rate(self, protocol: Protocol, otherwise: float) -> float:
        """The learning rate of the next epoch: the plateau schedule's while the run solves, unless
        it went back."""
        least = min(protocol.learning_rate, protocol.min_learning_rate)
        highest = protocol.learning_rate * 0.5**self.setbacks
        if self.done is None:
            return max(least, min(otherwise, highest))
        turned = math.pi * min(1.0, self.done / (_PAIR_EPOCHS + _FLIP_EPOCHS))
        share = max(_LEAST_RATE, 0.5 * (1 + math.cos(turned)))
        return max(least, _RATE * highest * share)
