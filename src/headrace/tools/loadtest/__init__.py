"""A user's own load test: how fast records go in and out, and how long one takes from end to end.

`histogram` counts (pure), `workload` sends and reads, `plot` draws."""
