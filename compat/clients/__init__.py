"""Stock clients read what every other client wrote: every record, key, header, timestamp, and the order."""
