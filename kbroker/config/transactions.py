"""Settings of transactions. They have no effect yet, and are declared so that the broker can read Kafka's files.

without_effect.json declares them.
"""
