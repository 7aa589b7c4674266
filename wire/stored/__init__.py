"""Stored records: those of internal topics and of the metadata log, and the bodies of small files.

`frame.record_types(module)` finds the classes of a module by the numbers in their frames.
"""
