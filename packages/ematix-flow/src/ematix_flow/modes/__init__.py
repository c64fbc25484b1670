"""How rows land: one file per mode, each a pure function from a table to a ``Change``."""
