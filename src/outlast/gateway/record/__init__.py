"""The record of a gateway: one SQLite file with every message, request and answer.

record_file   opening it, its tables, transactions
rows          what is read from it
record        messages and requests;  outbox: answers that wait for the broker's confirm
"""
