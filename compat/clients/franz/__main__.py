"""Build the program if it is missing, and print its path."""

from compat.clients.franz import PROGRAM

PROGRAM.main()
