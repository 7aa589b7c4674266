"""The rows, a module for each area."""
