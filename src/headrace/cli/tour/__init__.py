"""`headrace tour`: what texts about Kafka say, page by page, on brokers that are started for it and removed after.

Each page is a few sentences, commands, what they print now, and pictures of the cluster as it is then. The guide "The
architecture, shown" has the same.
"""
