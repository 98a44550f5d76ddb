"""`headrace produce` and `headrace consume`: records between topics and a terminal, a file or another command. What a
record looks like as text (`input_lines`, `output_lines`) and which are wanted (`filters`, `starts`) is pure."""
