"""What happens when a pipeline runs, and the record of it."""
