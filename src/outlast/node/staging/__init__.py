"""How data gets into a job: from any of several sources, resumed, checked, and unpacked on the way."""
