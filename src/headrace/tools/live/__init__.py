"""What a cluster is doing right now. `sample` asks, `rates` compares two samples (pure), for `headrace top`."""
