"""`headrace proof`: what replicas, their minimum, acks and durability keep and cost, measured on brokers that are lost.

Every answer is read off a ledger: a record that was acknowledged and cannot be read any more is lost.
"""
