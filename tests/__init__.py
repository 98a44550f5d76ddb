"""Tests and their helpers; a package so that helpers import as `tests.compat.raw` from anywhere in the tree."""
