"""What a broker does by the clock: retention, compaction, scrubbing, checkpoints, idle connections."""
