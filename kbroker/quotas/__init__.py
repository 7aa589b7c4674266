"""Client quotas: which limit applies to whom, and how fast each of them is."""
