"""A load test of any OpenAI-compatible speech server: `python benchmarks/load_test`.

`__main__` is the command line, `levels` sends one load after the other, `speech_client` times the
answers, `workload` draws the times and the texts of requests, `plot` draws the result.
"""
