"""`python -m headrace` is the command line."""

from headrace.cli.main import main

main()
