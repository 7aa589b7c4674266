"""Run the report card: `python -m compat --bootstrap-server localhost:9092`."""

import sys

from compat.card.main import main

sys.exit(main())
