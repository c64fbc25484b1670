"""How the conformance suite reaches each backend: one file per backend, found by its name."""
