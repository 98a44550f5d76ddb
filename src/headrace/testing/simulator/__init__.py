"""A cluster in one process: seeded virtual time, a network and disks that fail on command."""
