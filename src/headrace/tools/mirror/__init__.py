"""Topics of one cluster in another. `offsets` says what an offset of the source is in the target (pure), `topics` keeps
topics alike, `groups` moves committed offsets along, `mirroring` copies records."""
