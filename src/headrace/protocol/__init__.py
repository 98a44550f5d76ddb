"""Bytes to messages and back, for every API, record and data message of Kafka 4.3. Pure: nothing here does I/O."""
