"""A load test of any OpenAI-compatible speech server: `python benchmarks/load_test`.

`__main__` is the command line, `levels` sends one load after the other, `speech_client` times the
answers, `workload` draws when requests arrive and what they say, `plot` draws the result.
"""
