"""A cluster of real processes on disks and links of its own, struck by many faults at once, and a verdict on its
history."""
