"""The requests and responses, one file per API, with Kafka's names.

A module adds its classes to the registry of wire.schema when it is imported, so a program that serves few APIs loads
few. Other modules decide whether and in which versions an API is served.
"""
