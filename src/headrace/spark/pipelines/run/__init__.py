"""Runs of pipelines: started, watched, retried, stopped, and known to other processes by a registry of files.

What the commands `headrace pipeline run`, `list`, `watch` and `stop` stand on.
"""
