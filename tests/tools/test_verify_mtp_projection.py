"""The projection's checker finds each planted fault; without a reference it finds fewer."""

import shutil

import pytest
import torch
from commands import run
from safetensors import safe_open
from safetensors.torch import load_file, save_file

TOOL = "tools/verify_mtp_projection.py"
PREDICTOR = "talker.code_predictor."
WEIGHT = f"{PREDICTOR}small_to_mtp_projection.weight"
BIAS = f"{PREDICTOR}small_to_mtp_projection.bias"
HEAD = f"{PREDICTOR}lm_head.3.weight"
EMBEDDING = f"{PREDICTOR}model.codec_embedding.2.weight"
FIRST = "talker.model.codec_embedding.weight"


@pytest.fixture
def spoiled(tmp_path, model_folder):
    """Return spoiled(change): a 1.7B toy whose tensors `change` has changed."""

    def make(change):
        folder = tmp_path / "spoiled"
        folder.mkdir()
        source = model_folder("tiny-random-1.7b")
        shutil.copy(source / "config.json", folder)
        with safe_open(source / "model.safetensors", "pt") as stored:  # most of it is the text's
            names = [n for n in stored.keys() if n == FIRST or n.startswith(PREDICTOR)]  # noqa: SIM118
            tensors = {name: stored.get_tensor(name) for name in names}
        change(tensors)
        kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(kept, folder / "model.safetensors")
        return folder

    return make


def inputs(width):
    rows, cols = torch.arange(1, 5), torch.arange(1, width + 1)
    return torch.sin(torch.outer(rows, cols).double()).float()


@pytest.fixture(scope="module")
def reference(tmp_path_factory, official_model):
    """Return the same products by the official package's modules, in float32."""
    talker = official_model("tiny-random-1.7b").model.talker
    predictor = talker.code_predictor
    projection = predictor.small_to_mtp_projection
    with torch.inference_mode():
        wide, narrow = inputs(projection.in_features), inputs(projection.out_features)
        made = {WEIGHT: projection(wide), FIRST: wide @ talker.model.codec_embedding.weight.T}
        for group, head in enumerate(predictor.lm_head):
            made[f"{PREDICTOR}lm_head.{group}.weight"] = head(narrow)
        for group, table in enumerate(predictor.model.codec_embedding):
            made[f"{PREDICTOR}model.codec_embedding.{group}.weight"] = wide @ table.weight.T
    path = tmp_path_factory.mktemp("reference") / "official.safetensors"
    save_file({name: product.contiguous() for name, product in made.items()}, path)
    return path


@pytest.mark.parametrize(("name", "count"), [("tiny-random", 31), ("tiny-random-1.7b", 33)])
def test_it_needs_no_torch_and_claims_no_more_than_it_checks(tmp_path, model_folder, name, count):
    (tmp_path / "torch.py").write_text("raise ImportError('hidden by the test')")
    done = run(TOOL, model_folder(name), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"ok: {count} tensors, their names, shapes and plausible sizes",
        "not checked: whether the values are the right ones; --reference FILE checks that",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(HEAD), f"{HEAD}: missing; need (2048, 128)"),
        (lambda tensors: tensors.pop(FIRST), f"{FIRST}: missing"),
        (lambda tensors: tensors.pop(BIAS), f"{BIAS}: missing"),
        (
            lambda tensors: tensors.update({f"{PREDICTOR}lm_head.15.weight": tensors[HEAD] + 1}),
            "lm_head.15.weight: (2048, 128); need none",
        ),
        (lambda tensors: tensors.update({HEAD + "s": tensors.pop(HEAD)}), f"{HEAD}: missing"),
        (lambda tensors: tensors.update({EMBEDDING: tensors[HEAD] + 1}), "need (2048, 192)"),
        (lambda tensors: tensors.update({WEIGHT: tensors[WEIGHT].T}), "need (128, 192)"),
        (lambda tensors: tensors[BIAS].add_(100), f"{BIAS}: root mean square"),
        (lambda tensors: tensors[HEAD].zero_(), f"{HEAD}: root mean square 0"),
        (lambda tensors: tensors[EMBEDDING][0].fill_(1000), f"{EMBEDDING}: root mean square"),
        (lambda tensors: tensors[WEIGHT].view(-1)[:1].fill_(float("nan")), f"{WEIGHT}: NaN"),
        (lambda tensors: tensors[WEIGHT][1].copy_(tensors[WEIGHT][0]), "rank 127 of 128"),
        (
            lambda tensors: tensors[HEAD].copy_(tensors[HEAD.replace("3", "2")]),
            f"{HEAD}: equals {HEAD.replace('3', '2')}",
        ),
    ],
)
def test_a_planted_fault_is_found_without_a_reference(run_here, spoiled, change, message):
    done = run_here(TOOL, spoiled(change))
    assert (done.returncode, done.stdout.count("\n")) in ((1, 1), (1, 2)), done.stdout
    assert message in done.stdout


def test_a_projection_that_the_sizes_do_not_ask_for_is_found(run_here, tmp_path, model_folder):
    folder = shutil.copytree(model_folder("tiny-random"), tmp_path / "model")
    path = folder / "model.safetensors"
    save_file(load_file(path) | {WEIGHT: torch.eye(128)}, path)
    done = run_here(TOOL, folder)
    assert (done.returncode, done.stdout) == (1, f"{WEIGHT}: (128, 128); need none\n")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda tensors: tensors.update({WEIGHT: tensors[WEIGHT].flip(0)}), WEIGHT),
        (lambda tensors: tensors[WEIGHT][5, 7].add_(0.02), WEIGHT),
        (lambda tensors: tensors[BIAS].add_(0.01), WEIGHT),
        (lambda tensors: tensors.update({HEAD: tensors[HEAD].roll(1, 0)}), HEAD),
        (lambda tensors: tensors.update({EMBEDDING: tensors[EMBEDDING].flip(1)}), EMBEDDING),
        (lambda tensors: tensors[FIRST][2900:2902].copy_(tensors[FIRST][:2]), FIRST),
    ],
    ids=["rows", "one value", "bias", "head", "columns", "embedding"],
)
def test_a_reference_alone_finds_other_values(run_here, spoiled, reference, change, name):
    folder = spoiled(change)
    assert run_here(TOOL, folder).returncode == 0
    done = run_here(TOOL, folder, "--reference", reference)
    assert done.returncode == 1
    [line] = done.stdout.splitlines()
    assert line.startswith(f"{name}: products with fixed inputs differ by ")


def test_products_of_the_official_package_are_ours(run_here, model_folder, reference, tmp_path):
    folder, written = model_folder("tiny-random-1.7b"), tmp_path / "ours.safetensors"
    done = run_here(TOOL, folder, "--reference", reference)
    assert (done.returncode, done.stderr) == (0, "")
    [_, line] = done.stdout.splitlines()
    assert line == f"ok: products with fixed inputs are those of {reference}"
    assert run_here(TOOL, folder, "--write-reference", written).returncode == 0
    assert run_here(TOOL, folder, "--reference", written).returncode == 0
    ours, theirs = load_file(written), load_file(reference)
    assert ours.keys() == theirs.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda products: products.pop(HEAD), f"{HEAD}: only in the checkpoint"),
        (lambda products: products.update(more=products[HEAD].clone()), "more: only in the ref"),
        (lambda products: products.update({HEAD: products[HEAD][:2].clone()}), "(2, 2048), not"),
        (lambda products: products[HEAD].fill_(float("nan")), f"{HEAD}: products"),
    ],
)
def test_a_reference_that_lacks_something_vouches_for_nothing(
    run_here, model_folder, reference, tmp_path, change, message
):
    products = load_file(reference)
    change(products)
    save_file(products, tmp_path / "changed.safetensors")
    folder = model_folder("tiny-random-1.7b")
    done = run_here(TOOL, folder, "--reference", tmp_path / "changed.safetensors")
    assert done.returncode == 1 and message in done.stdout


def test_a_missing_file_is_named(run_here, tmp_path, model_folder):
    for arguments in ((tmp_path,), (model_folder("tiny-random"), "--reference", tmp_path / "x")):
        done = run_here(TOOL, *arguments)
        assert done.returncode == 2 and f"there is no file {tmp_path}" in done.stderr
