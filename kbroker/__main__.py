"""`python -m kbroker` is the `kbroker` command."""

import sys

from kbroker.cli import main

if __name__ == "__main__":
    sys.exit(main())
