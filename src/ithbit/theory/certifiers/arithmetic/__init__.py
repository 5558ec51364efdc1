"""Sound arithmetic: intervals, affine forms, exact lines, fractional programs."""
