"""The transaction coordinator, pure: what each transactional id may do next, kept in `__transaction_state`.

Requests in, records and answers out, in the shape of the groups' coordinator (`coordinator/outcome.py`).
"""
