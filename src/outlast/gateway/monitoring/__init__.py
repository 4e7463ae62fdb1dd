"""What people and programs see of a running gateway: audit log, metrics, health, heartbeat."""
