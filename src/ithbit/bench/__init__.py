"""How fast training is: the reference, the stacked models and the kernels side by side, in one run
on one machine, and how near they come to what that machine can do."""
