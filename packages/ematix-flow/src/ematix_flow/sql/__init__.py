"""SQL built and read with sqlglot: identifiers, normalizers, assignment of types."""
