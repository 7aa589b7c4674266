"""Settings of security that have no effect or are refused. They are declared so that the broker can read Kafka's files.

without_effect.json declares them. Those with an effect are in tls.py, sasl.py and authorizer.py.
"""
