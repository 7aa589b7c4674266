"""`python -m kbroker.testing.node_start`: starts `node_child`, with the garbage collector off during the imports.

They create many lasting objects and little garbage; collecting would take 15 ms (see kbroker.cli.serve).
"""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    gc.disable()
    from kbroker.testing.node_child import main

    sys.exit(main())
