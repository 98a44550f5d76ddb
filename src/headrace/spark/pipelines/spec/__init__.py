"""What a pipeline is: the YAML file, the SQL and Python it names, and the graph they form.

Reads files and nothing else; needs no Spark and no broker.
"""
