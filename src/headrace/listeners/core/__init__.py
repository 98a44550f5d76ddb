"""What a listener decides, pure: which records may run, what may be committed, what a failure leads to, and the headers
that tell of it. No clock, no network: `now` is an argument, everything else is values in and values out."""
