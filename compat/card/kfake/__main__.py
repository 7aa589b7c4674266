"""Build the program if it is missing, and print its path."""

from compat.card.kfake import PROGRAM

PROGRAM.main()
