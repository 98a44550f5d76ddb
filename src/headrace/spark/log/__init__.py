"""`format("headrace-log")`: topics read straight from the files of a broker, running or not, in parallel.

Never writes to the folder and never asks a broker.
"""
