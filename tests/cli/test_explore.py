"""`ithbit explore`: a page from runs, or one sentence on why there is none."""

from pathlib import Path

from tests.support.paths import WEIGHTS


def test_a_page_from_a_name_or_from_folders(ithbit, tmp_path: Path) -> None:
    name, page = "lhi_n16_gru_L1d16h2_polynomial_s0", tmp_path / "page.html"
    folders = [next(WEIGHTS.glob(f"{kind}/{name}-*")) for kind in ("uniform", "mixed")]
    for runs in ([name, "--store", WEIGHTS / "uniform", "--no-construction"], folders):
        assert ithbit("explore", *runs, "-o", page) == (0, f"{page}\n", "")
        assert ("Written by hand" in page.read_text()) == (runs is folders)


def test_a_mistake_is_one_sentence(ithbit, tmp_path: Path) -> None:
    runs = [f"lhi_n{n}_gru_L1d16h2_polynomial_s1" for n in (16, 32)]
    status, out, err = ithbit(
        "explore", *runs, "--store", WEIGHTS / "uniform", "-o", tmp_path / "p"
    )
    assert (status, out) == (2, "")
    assert "must have the same task and the same n" in err
    assert list(tmp_path.iterdir()) == []
