"""Every compiled normalizer equals its plain-Python meaning, in every engine."""
