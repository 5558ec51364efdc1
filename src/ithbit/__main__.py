"""`python -m ithbit` is the command `ithbit`."""

from ithbit.cli import main

if __name__ == "__main__":
    main()
