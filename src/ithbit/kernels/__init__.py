"""The training step of a stack of runs, fused in Triton: the fast twin of `models`.

A step is a handful of launches for the whole stack: each layer forward, the last layer forward and
backward with the loss, each layer backward, then the ordered sum of the gradients, clipping and
AdamW. Data are drawn inside the kernels; nothing crosses to the host. `step.py` is the entry point;
every product is fp32-accurate (three-pass tf32).
"""
