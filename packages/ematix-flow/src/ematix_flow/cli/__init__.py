"""The ``flow`` command: parse, call, print, exit code."""
