"""Files between controller and jobs: through a shared file system, or along with each job."""
