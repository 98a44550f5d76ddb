"""Topics to files and back. `lines` says what a record is as JSON (pure), `progress` what survives a kill -9,
`files` writes and reads both formats, `exporting` and `importing` do the work."""
