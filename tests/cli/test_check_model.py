"""`ithbit check --model`: exit status, JSON, and what is said of mistakes."""

import json
import shutil

import pytest
from tests.support.paths import SUPPORT

import ithbit
from ithbit.errors import SpecError

FILE = SUPPORT / "small_language_models.py"


def test_a_broken_model_ends_with_1_and_code_in_json(ithbit, tmp_path) -> None:
    shutil.copy(FILE, tmp_path)
    (tmp_path / "mine.py").write_text(
        "from small_language_models import AttentionModel\n"
        "def broken():\n"
        "    return AttentionModel('cache off by one')\n"
    )
    status, out, _ = ithbit("check", "--model", "mine.py:broken", "--seconds", "0.5", "--json")
    data = json.loads(out)
    assert (status, data["exit_code"], data["verdict"]) == (1, 1, "broken")
    clauses = {each["clause"]: each for each in data["clauses"]}
    assert clauses["cache"]["outcome"] == "broken"
    code = clauses["cache"]["finding"]["code"]
    assert f"runpy.run_path({str(tmp_path / 'mine.py')!r})['broken']" in code


def test_a_model_that_is_no_module_ends_with_2(ithbit, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("def factory():\n    return 3\n")
    status, out, _ = ithbit("check", "--model", "mine.py:factory")
    assert status == 2
    assert "cannot be checked: give a torch.nn.Module, got int" in out


def test_a_layer_and_a_model_at_once_are_refused() -> None:
    for given in ({}, {"layer": "gru", "model": "gru"}):
        with pytest.raises(SpecError, match="either a layer or a model"):
            ithbit.check(**given)
