"""Tests and their helpers; a package so that helpers import as `tests.compat.raw` from anywhere in the tree."""

import os

recorder = None
"""Of the lines that tests reach. Begun here because this is imported first, before anything that is measured."""

if os.environ.get("HEADRACE_COVERAGE"):
    from tests.coverage import begin

    recorder = begin()
