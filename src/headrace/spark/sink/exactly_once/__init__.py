"""Each row of each batch once: tasks leave their transactions open, and the driver decides in one record which count.

`decisions` is pure and says what to do in which order; `decision_log` keeps the records; `commit` carries it out.
"""
