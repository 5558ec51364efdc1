"""Options for sbatch from the command line and from profiles."""

import pytest

from ithbit.errors import SpecError
from ithbit.sweeps.executors.slurm import SlurmOptions, read_options


def test_a_profile_and_what_overrides_it(tmp_path):
    profile = tmp_path / "gpu.toml"
    profile.write_text(
        'partition = "gpu"\ncpus_per_task = 4\nexclusive = true\noverlap = false\ntime = "1:00:00"'
    )
    assert read_options(["--time=4:00:00", "account=a=b"], profile).sbatch == {
        "partition": "gpu",
        "cpus-per-task": "4",
        "exclusive": True,
        "time": "4:00:00",
        "account": "a=b",
    }


def test_all_problems_at_once():
    with pytest.raises(SpecError) as refused:
        read_options(["p=gpu", "time=", "array=1-3", "job_name=x", "bad name=1"])
    for message in (
        "'p' is not the long name",
        "time needs a value",
        "array is not to be",
        "job-name is",
    ):
        assert message in str(refused.value)
    assert "'bad name'" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partition = [1]", "partition must be a string, a number, true or false"),
        ("partition", "is not valid TOML"),
        ('wrap = "rm"', "wrap is not to be given"),
        ("setup = 3", "setup must be a shell line"),
        ('setup = "a\\nb"', "setup must be a shell line"),
        ('python = ""', "python must be the command that starts Python"),
        ("python = true", "python must be the command that starts Python"),
    ],
)
def test_bad_profiles(tmp_path, text, message):
    profile = tmp_path / "bad.toml"
    profile.write_text(text)
    with pytest.raises(SpecError, match=message):
        read_options([], profile)


def test_a_profile_that_is_not_there(tmp_path):
    with pytest.raises(SpecError, match=r"cannot read .*none\.toml: No such file"):
        read_options([], tmp_path / "none.toml")


def test_ways_to_ask_for_a_gpu():
    assert SlurmOptions({"gres": "gpu:1"}).asks_for_gpu
    assert SlurmOptions({"gpus-per-node": "2"}).asks_for_gpu
    assert not SlurmOptions({"gres": "disk:1", "partition": "gpu"}).asks_for_gpu


def test_setup_lines_of_the_profile_come_first(tmp_path):
    profile = tmp_path / "gpu.toml"
    profile.write_text('setup = ["module load cuda", "a"]\npython = "srun python3"\ntime = 5')
    options = read_options(["setup=b=1"], profile)
    assert options == SlurmOptions({"time": "5"}, ("module load cuda", "a", "b=1"), "srun python3")
