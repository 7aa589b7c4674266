"""Build the program if it is missing, and print its path."""

import sys

from compat.clients.franz import build
from compat.kafka.libraries import Unavailable

try:
    print(build())
except Unavailable as error:
    sys.exit(str(error))
