"""Who hears of runs: alerts, metrics and traces, none of which may fail or delay one."""
