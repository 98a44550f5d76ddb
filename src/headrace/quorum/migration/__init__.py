"""Moves the metadata of a stopped cluster from one quorum to the other.

`kraft_folders` reads and writes metadata on nodes' disks, `znodes_target` in ZooKeeper; `moving` says in which order.
"""
