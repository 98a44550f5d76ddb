"""The names of what queries count while they run (`DataFrame.observe`), as Spark's progress reports give them back."""

EXPECTATIONS = "expect_"
"""Begins the metric of a part with expectations: its rows, and how many did not meet each of them."""
ROWS = "rows"

DEAD_LETTERS = "dead_letters_"
"""Begins the metric of a source with dead letters: how many of its values could not be read."""
COUNT = "count"

WRITTEN = "written"
"""The rows that a query gives to its sink."""
