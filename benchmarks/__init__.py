"""Benchmarks of this project and of other speech servers.

`measure.py` measures this project and `load_test` any speech server; `roofline.py` calculates lower
limits, and `pages.py` writes the documentation's tables from the results.
"""
