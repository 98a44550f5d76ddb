"""This node among others: metadata that it follows, membership, and its ways to the controller and to other brokers."""
