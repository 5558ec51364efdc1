"""Can a sequence model read the i-th bit?"""

__version__ = "0.1.0"
