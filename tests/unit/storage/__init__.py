"""Tests of `headrace.storage`."""
