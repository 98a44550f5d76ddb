"""Apache Kafka itself, started and asked as the specification."""
