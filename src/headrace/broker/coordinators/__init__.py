"""The shell around `headrace.coordinator`: shards loaded, run, and written to their topic; the lag of groups."""
