"""The sandbox of a job without a shared file system: what travels, and how it leaves a running job."""
