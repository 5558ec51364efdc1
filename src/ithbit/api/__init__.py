"""The Python API: everything the command line can do, with the same names and defaults.

The command line calls these functions and prints what they return. The modules here import little
at the top, so that mistakes are reported before torch is loaded.
"""
