"""The active controller: what a node does while it leads the metadata quorum, and the requests that it decides."""
