"""Headrace against the outside world: Kafka's answers, Kafka's files, Kafka's clients."""
