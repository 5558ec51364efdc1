"""The decision of each block that is trained, and of formal linear attention, as a program on
numbers that write down the equations behind them (`system`).

Every program takes a `System`, weights as plain lists, what one index contributes, as floats, and
the fingerprint's values, from which it makes the parameters. It adds the tests of one stage to the
system, and returns the value of the logit, or of what the stage decides.
"""
