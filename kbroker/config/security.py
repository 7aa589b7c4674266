"""Settings of security. Most have no effect yet, and are declared so that the broker can read Kafka's files.

without_effect.json declares them.
"""
