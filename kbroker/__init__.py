"""kbroker: a broker that stock Kafka clients talk to without knowing."""

__version__ = "0.1.0"
