"""The formats of messages. Nothing here reads a clock, a file or the network, but the packaged JSON Schemas.

read             a delivery to a request; what is refused, and what is put aside without an answer
strict_json      bytes to a JSON value, with every mistake in it
own              our own format, version 1;  cloudevents: the same in an envelope
rodan            the requests of Rodan's jobs
encoding         answers to bodies
failure_texts    what each failure code means, and what to do about it
schemas          our own format as JSON Schema
"""
