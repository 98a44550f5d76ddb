"""Getting Spark to run: Java, sessions, masters, and Python workers that start quickly.

Nothing here reads or writes a topic.
"""
