"""Transactions at work: the coordinator of `__transaction_state`, its markers, and leaders that ask it first.

The rules are in `headrace.coordinator.transactions`; nothing here decides what becomes of a transaction.
"""
