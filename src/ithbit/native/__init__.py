"""The six families compiled for this CPU by numba: the fast twin of `models/` without a GPU.

`simd.py` has vectors of examples as values; `tokenwise.py`, `norms.py`, `feed_forward.py` and
`tokens.py` the parts that families share; `softmax.py`, `linear.py`, `gru.py` and `mamba2.py` a
family each, one function that is compiled as a whole; `model.py` is the way in. Sizes are run-time
arguments: all lengths, widths and depths of a family share one compilation. Needs numba, so what
imports it is imported where it is first wanted; `building.py` needs none.
"""
