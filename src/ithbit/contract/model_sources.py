"""Whole models in the forms in which people name or give them, each with the Python that makes it.

A factory takes no arguments and returns the model, built from a configuration; `transformers:CLASS`
is that class with a small configuration of ours; a folder of a run, a loaded run and the name of a
family are our own models.
"""

import copy
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ithbit.contract.building import import_lines
from ithbit.contract.own_models import (
    EveryTokenModel,
    clauses_by_design,
    every_token,
    family_model,
)
from ithbit.contract.tiny_models import MODEL_SOURCE, model_class, tiny_model
from ithbit.errors import LayerError
from ithbit.families import FAMILIES
from ithbit.loading.model import Model, load_model
from ithbit.models.layer_source import find_layer

_GIVEN = "import copy\nmodel = copy.deepcopy(model)  # model: the one that was checked"
_FORMS = (
    "give PATH.py:factory, package.module:factory, transformers:LlamaForCausalLM, the folder of a "
    "run, or a family such as gru"
)


@dataclass(frozen=True)
class ModelSource:
    """What is checked: `build` makes it, and so does the `source`, which binds `model`; clauses
    that are broken by design come with the reason and are not checked."""

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    source: str
    by_design: Mapping[str, str] = field(default_factory=dict)


def model_source(given: Any, name: str = "") -> ModelSource:
    """The model that a user names or gives."""
    if isinstance(given, ModelSource):
        return given
    if isinstance(given, str | Path):
        return _named(str(given))
    if isinstance(given, Model):
        return _own(every_token(given), name or repr(given), "a run that ithbit.load gave")
    if isinstance(given, nn.Module):
        return _instance(given, name or type(given).__name__)
    if callable(given):
        called = str(getattr(given, "__name__", type(given).__name__))
        made = f"model = {called if called.isidentifier() else 'factory'}()"
        return ModelSource(name or called, given, "\n".join([*import_lines(given, called), made]))
    raise LayerError(f"a model is an nn.Module or a function, got {type(given).__name__}; {_FORMS}")


def is_whole_model(given: Any) -> bool:
    """Whether what is given to check is a whole model rather than a layer: a model that
    `ithbit.load` gave, or a module that says which of its parts embeds token ids."""
    if isinstance(given, str):
        return given.startswith("transformers:")
    if isinstance(given, Model | EveryTokenModel | ModelSource):
        return True
    embeds = hasattr(given, "get_input_embeddings")
    return isinstance(given, nn.Module) and embeds and hasattr(given, "config")


def _named(text: str) -> ModelSource:
    where, _, name = text.rpartition(":")
    if text in FAMILIES:
        start = "from ithbit.contract.own_models import family_model"
        source = f"{start}\nmodel = family_model({text!r})"
        by_design = clauses_by_design(family_model(text).spec)
        return ModelSource(text, lambda: family_model(text), source, by_design)
    if where == "transformers":
        if importlib.util.find_spec("transformers") is None:
            raise LayerError(f"{text} needs transformers; install ithbit[reference]")
        model_class(name)  # imported before anything is timed
        return ModelSource(name, lambda: tiny_model(name), MODEL_SOURCE.format(name))
    if Path(text).is_dir():
        lines = ("import ithbit", "from ithbit.contract.own_models import every_token")
        source = "\n".join([*lines, f"model = every_token(ithbit.load({text!r}))"])
        made = every_token(load_model(Path(text)))
        return ModelSource(
            Path(text).name, lambda: copy.deepcopy(made), source, clauses_by_design(made.spec)
        )
    if not where or not name:
        raise LayerError(f"{text!r} is no model; {_FORMS}")
    factory = find_layer(text).factory
    if where.endswith(".py"):
        path = Path(where).resolve()
        lines = ("import runpy, sys", f"sys.path.append({str(path.parent)!r})")
        first = "\n".join([*lines, f"{name} = runpy.run_path({str(path)!r})[{name!r}]"])
    else:
        first = f"from {where} import {name}"
    if isinstance(factory, nn.Module):
        given = factory
        return ModelSource(name, lambda: copy.deepcopy(given), f"{first}\nmodel = {name}")
    return ModelSource(name, factory, f"{first}\nmodel = {name}()")


def _own(model: EveryTokenModel, name: str, what: str) -> ModelSource:
    source = f"import copy\nmodel = copy.deepcopy(model)  # every_token of {what}"
    return ModelSource(name, lambda: copy.deepcopy(model), source, clauses_by_design(model.spec))


def _instance(given: nn.Module, name: str) -> ModelSource:
    kept = copy.deepcopy(given)
    return ModelSource(name, lambda: copy.deepcopy(kept), _GIVEN)
