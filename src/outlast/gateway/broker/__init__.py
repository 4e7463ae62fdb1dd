"""The connection to the broker: one thread that only moves messages. The only place that imports pika."""
