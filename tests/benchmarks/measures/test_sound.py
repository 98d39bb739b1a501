"""benchmarks/measures/sound.py, at toy size."""


def test_each_step_is_timed_for_a_second_that_is_heard(measured, capsys):
    words = ("--model", "demo-voice", "--backend", "cpu", "--runs", "2", "--warmup", "0")
    code, found = measured("sound", *words)
    figures = found["summary"]
    assert set(figures) >= {"slow_ms", "fast_ms", "telephone_ms", "loud_ms", "edges_ms"}
    assert all(figure["p50"] > 0 and figure["count"] == 2 for figure in figures.values())
    missed = capsys.readouterr().err.count("is above")
    assert code == (1 if missed else 0)
    assert missed == sum(
        figures[name]["p50"] > limit
        for name, limit in {
            **dict.fromkeys(("slow_ms", "fast_ms", "twice_ms"), 15.0),
            **dict.fromkeys(("telephone_ms", "studio_ms"), 2.0),
        }.items()
    )
