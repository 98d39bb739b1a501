"""Stamps of stages and ncu's pages: arithmetic by hand, the emulated kernel, files."""

import json
import subprocess
import sys

import kernel_models as k
import numpy as np
import pytest
from matplotlib import image
from nvcc import needs_nvcc
from tolerances import STAGE_SUM

from benchmarks import roofline
from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.native import compiling
from qwen_megakernel.speech_options import Sampling
from tools.gpu_check import nsight_compute, stage_times
from tools.gpu_check.stage_times import RECORD, Launch
from tools.gpu_check.steps.context import TOY, Context

STAGES = ["none", "input", "qkv_proj", "attention", "o_proj", "sample_code_0"]
GHZ = 2  # cycles a nanosecond
# The name of each stage, and the cycles of both blocks' moments since its beginning.
BLOCKS = [
    ("input", [(0, 0, 0, 200, 300, 1000), (0, 0, 0, 800, 900, 1000)]),
    ("qkv_proj", [(400, 600, 1600, 2000, 2200, 4000), (400, 400, 1400, 3000, 3300, 4000)]),
    ("sample_code_0", [(0, 0, 0, 10, 10, 600), (0, 0, 0, 30, 30, 600)]),
    ("qkv_proj", [(100, 100, 200, 400, 400, 1000), (100, 100, 300, 600, 600, 1000)]),
]


def records() -> np.ndarray:
    """Return the records of a kernel of two blocks whose SMs' clocks start at different values."""
    found = np.zeros((2, 8), dtype=RECORD)
    for block, start in enumerate((10**6, 5 * 10**9)):
        now = start
        for index, (name, moments) in enumerate(BLOCKS, start=1):
            cycles = [now + each if each else 0 for each in moments[block]]
            found[block, index] = (cycles, STAGES.index(name), 3)
            now += moments[block][-1]
        found["stamps"][block, 0, :4] = start, 7000, now, 7000 + (now - start) / GHZ
    return found


def test_parts_of_a_stage_are_those_of_the_stamps():
    launch = Launch.from_records(records(), STAGES.__getitem__)
    assert launch.names == ["input", "talker qkv_proj", "sample_code_0", "predictor qkv_proj"]
    assert launch.layers == [3] * 4 and launch.cycles_per_us == 1000 * GHZ
    rows = {row["name"]: row for row in launch.stages(frames=2)}
    assert list(rows) == ["talker qkv_proj", "input", "predictor qkv_proj", "sample_code_0"]
    talker = rows["talker qkv_proj"]
    assert {key: value for key, value in talker.items() if key != "name"} == {
        "per_frame": 0.5,
        "frame_us": 1.0,
        "span_us": 2.0,
        "work_us": 1.25,  # the medians of blocks that took 1.0 and 1.5
        "longest_us": 1.5,
        "hidden_us": 0.125,
        "wait_us": 0.625,
        "barrier_us": 0.5,
        "rows_us": 0.2,
        "starved_us": 0.05,
        "product_us": 0.5,
        "straggler": {"block": 1, "share": 1.0},
    }
    assert rows["input"]["rows_us"] is None and rows["input"]["product_us"] is None


def test_a_window_begins_at_a_release_that_all_blocks_share():
    window = Launch.from_records(records(), STAGES.__getitem__).timeline()[0]
    assert [name for name, _ in window["stages"]][:2] == ["talker qkv_proj", "sample_code_0"]
    first = [block[0] for block in window["us"]]
    assert first == [[0, 1.0, 1.1, 2.0], [0, 1.5, 1.65, 2.0]]


def test_blocks_that_went_through_other_stages_are_refused():
    other = records()
    other["stage"][1, 2] = 3
    with pytest.raises(ValueError, match="different stages"):
        Launch.from_records(other, STAGES.__getitem__)
    other["stage"][1, 4:] = 0
    with pytest.raises(ValueError, match="3 to 4 stages"):
        Launch.from_records(other, STAGES.__getitem__)


@pytest.fixture(scope="module")
def document() -> dict:
    return stage_times.measure(Context(True, 0.0, None), "random-0.6b-base", 1)


@pytest.mark.ci
def test_every_stage_of_an_emulated_frame_has_its_stamps(document):
    config = parse_model_config(model_config(TOY))
    stages = {row["name"]: row for row in document["stages"]}
    barriers = roofline.frame_barriers(config, streams=1)
    assert sum(row["per_frame"] for row in stages.values()) == barriers
    assert stages["lm_head"]["per_frame"] == config.talker.num_code_groups - 1
    layers = config.talker.stack.num_layers
    assert stages["talker attention"]["per_frame"] == layers
    assert "predictor attention" not in stages  # with one stream every block does it
    total = sum(row["frame_us"] for row in stages.values())
    assert total == pytest.approx(document["us_per_frame"], rel=STAGE_SUM)
    for row in stages.values():
        has_product = row["name"].endswith(("_proj", "_head"))
        assert all((row[f"{part}_us"] is not None) == has_product for part in ("rows", "product"))
        assert 0 < row["work_us"] <= row["longest_us"] and row["wait_us"] > 0


@needs_nvcc
@pytest.mark.ci
def test_only_a_build_with_stamps_reads_a_clock():
    for has_stamps in (False, True):
        target = build.Target("sm_90a", "bfloat16", stage_times=has_stamps)
        values = build.definitions(k.small_config(), target)
        command = [build.find_nvcc(), "-std=c++17", "-arch=sm_90a", "-ptx", "-o", "-"]
        command += [f"-D{name}={value}" for name, value in values.items()]
        command.append(str(compiling.source_folder() / "step_kernel.cu"))
        ptx = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert ("clock64" in ptx) == has_stamps


@pytest.mark.ci
def test_stamps_change_no_code():
    with stage_times.stamped_builds():
        stamped = Context(True, 0.0, None).decoder(k.checkpoint())
    plain = Context(True, 0.0, None).decoder(k.checkpoint())
    assert [d.library.description.max_stage_records for d in (stamped, plain)] == [4096, 0]
    for decoder in (stamped, plain):
        k.start(decoder, 0, Sampling(), seed=1)
    assert (stamped.step([0], 3).codes == plain.step([0], 3).codes).all()


@pytest.mark.ci
def test_a_file_is_read_again_compared_and_drawn(document, tmp_path, monkeypatch, capsys):
    file, picture = tmp_path / "now.json", tmp_path / "now.png"
    before = json.loads(json.dumps(document)) | {"us_per_frame": 1234.5}
    before["stages"][0]["frame_us"] = 777.25
    (tmp_path / "before.json").write_text(json.dumps({"launches": [before]}))
    file.write_text(json.dumps({"steps": {"stage_times": {"result": {"launches": [document]}}}}))
    arguments = [str(file), "--against", str(tmp_path / "before.json"), "--plot", str(picture)]
    monkeypatch.setattr(sys, "argv", ["stage_times.py", *arguments])
    assert stage_times.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert "(1234.5 before)" in lines[0] and "777.25" in lines[2]
    assert len(lines) == 2 + len(document["stages"])
    pixels = image.imread(picture)
    assert len({tuple(pixel) for row in pixels[::20] for pixel in row[::20].tolist()}) > 3


@pytest.mark.ci
def test_another_schema_is_refused(document, tmp_path):
    (tmp_path / "old.json").write_text(json.dumps(document | {"schema": "stage_times/0"}))
    with pytest.raises(SystemExit, match="stage_times/0"):
        stage_times.documents(tmp_path / "old.json")


@pytest.mark.ci
def test_without_matplotlib_the_figures_are_kept(document, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="plots"):
        stage_times.plot(document, tmp_path / "x.png")


def test_every_gpu_library_has_line_numbers():
    assert "-lineinfo" in build.NVCC_FLAGS


# ---- ncu

DETAILS = """==PROF== Connected
"ID","Section Name","Metric Name","Metric Unit","Metric Value"
"0","GPU Speed Of Light Throughput","Duration","ms","1.52"
"0","GPU Speed Of Light Throughput","","",""
"""
SOURCE = """"#","Source","Warp Stall Sampling (All Samples)","stall_barrier","stall_wait"
"1","HMMA.16816.F32.BF16 R4, R8","12","0","9"
"2","BAR.SYNC.DEFER_BLOCKING 0x0","1,200","1,150","50"
"3","EXIT","0","0","0"
"""


def test_what_ncu_prints_becomes_figures():
    assert nsight_compute.metrics(nsight_compute.rows(DETAILS)) == {
        "GPU Speed Of Light Throughput: Duration": "1.52 ms"
    }
    hottest = nsight_compute.hottest(nsight_compute.rows(SOURCE))
    assert [row["Source"].split(".")[0] for row in hottest] == ["BAR", "HMMA", "EXIT"]
    assert hottest[0]["stall_barrier"] == "1,150" and "stall_barrier" not in hottest[1]
