"""What the larger commands do: topics to files and back, SQL over topics, load tests, mirrors, a live view.

Stands on `client` alone, so everything here works with any Kafka; parsing and printing are the command line's."""
