"""Which replicas should move: `plans` for a person who asks, `auto` for the controller that does it by itself.

Pure, like the rest of the metadata.
"""
