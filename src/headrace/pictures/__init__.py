"""Pictures as SVG, from values: a canvas with the few shapes they are made of, and a module for each kind of picture.

Pure: nothing here asks a cluster or writes a file.
"""
