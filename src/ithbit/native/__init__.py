"""The six families compiled for this CPU by numba: the fast twin of `models/` without a GPU.

`simd.py` has vectors of examples as values; `tokenwise.py`, `norms.py`, `feed_forward.py` and
`tokens.py` have the parts that families share; `softmax.py`, `linear.py`, `gru.py` and `mamba2.py`
each have both passes of one layer, from which `entry.py` makes one function that is compiled as a
whole; `model.py` is the entry point. Sizes are run-time arguments: all lengths, widths and depths
of a family share one compilation. Needs numba, so modules that import it are imported only where
needed; `building.py` works without it.
"""
