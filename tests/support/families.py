"""The paper's six families: those with theory, kernels, compiled code, a page and shipped runs.

Tests of these things take their families from here; tests of what every family must do take them
from `ithbit.families.FAMILIES`, in which there may be more.
"""

PAPER_FAMILIES = (
    "softmax-full",
    "softmax-causal",
    "linear-full",
    "linear-causal",
    "gru",
    "mamba2",
)
