"""Fetch: by consumers and by followers, what they may read, and how it comes into memory."""
