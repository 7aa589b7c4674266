"""Tests of kbroker.coordinator."""
