"""Pipelines: one YAML file of sources, transforms and sinks, checked and then run on Spark.

`spec` reads the file, `checks` compares it with the world, `dataframes` hands it to Spark, `run` runs and watches it.
"""
