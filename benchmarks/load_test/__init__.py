"""A load test of any OpenAI-compatible speech server: `python benchmarks/load_test`.

`__main__` is the command line, `levels` sends one load after the other, `speech_client` times what
it hears, `workload` draws when requests come and what they say, `plot` draws the result.
"""
