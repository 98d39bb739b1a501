"""Benchmarks: `measure.py` measures this project, `load_test` any speech server, `pages.py` writes
what the documents say of the results; `roofline.py` calculates what nothing can go below.
"""
