"""One module per API family: decode, ask the cores, answer. Version notes stand at the top of each."""
