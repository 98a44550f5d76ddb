"""The documents that Headrace was made from, sentence by sentence: one file for each document, one test for each claim.

The guide "The architecture, shown" names them.
"""
