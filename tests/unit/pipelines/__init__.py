"""Specs of pipelines, read and refused without Spark."""
