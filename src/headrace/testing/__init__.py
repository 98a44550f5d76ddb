"""What users and this project test with: broker fixtures, and a simulator of machines, networks and disks."""
