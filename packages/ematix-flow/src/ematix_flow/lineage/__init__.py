"""Which columns a table's columns come from, by which pipeline, and which depend on one."""
