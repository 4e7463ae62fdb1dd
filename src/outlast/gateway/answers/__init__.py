"""Results of finished runs: collected, checked, and sent by value or by reference."""
