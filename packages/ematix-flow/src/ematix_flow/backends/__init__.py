"""Where rows live: one file per product, found by its connection's kind."""
