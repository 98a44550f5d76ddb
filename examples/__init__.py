"""Examples to read, run and copy from. Each is a script: `python -m examples.sessions`."""
