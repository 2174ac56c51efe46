"""An event broker in Python that speaks the Kafka wire protocol."""
