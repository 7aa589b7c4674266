"""Stock clients write and read, each what every other wrote: every record, key, header, timestamp, and the order."""
