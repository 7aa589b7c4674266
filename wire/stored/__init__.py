"""Stored records: those of internal topics and of the metadata log.

`frame.record_types(module)` finds the classes of a module by the numbers in their frames.
"""
