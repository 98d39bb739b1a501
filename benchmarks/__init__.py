"""Benchmarks; each is a script, `common` is what they share."""
