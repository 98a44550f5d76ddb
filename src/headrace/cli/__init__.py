"""The command line. `main` dispatches; each command has a module of its own, imported only when it is used."""
