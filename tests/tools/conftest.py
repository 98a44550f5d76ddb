"""The brokers of the client's tests: Headrace's, and Apache's where its jars are at hand."""

from tests.client.conftest import broker as broker
