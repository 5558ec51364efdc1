"""The Python door: what the command line can do, with the same names and the same defaults.

The command line calls these functions and prints what they return. Modules here import little at
their top, so that a mistake is reported before torch is loaded.
"""
