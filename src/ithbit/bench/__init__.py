"""How fast training is: the reference and the steppers side by side, in one run on one machine, and
how close they come to what that machine can do."""
