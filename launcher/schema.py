"""What a configuration file may say: the launcher's flags, as its parser has them, and the Session's arguments.

Values are checked one by one here; what they mean together is the business of whoever uses them.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema, create_model

from elastic_runtime.core.learning_rate import LR_RULES
from elastic_runtime.session.arguments import BATCH_RULES, NOT_AT, REDUCTIONS
from launcher.config import flags
from launcher.config_file import ConfigFile, Keys

LISTS = ("local_ranks_filter", "signals_to_handle", "rdzv_endpoint")  # flags of values with commas between them
TABLES = ("rdzv_conf",)  # flags of key=value with commas between them

Reader = Callable[[Any], Any]
Rule = tuple[Reader, dict[str, Any]]  # what a value becomes or why it is wrong, and that as a JSON schema


# -- values -----------------------------------------------------------------------------------------------------------


def count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("must be a whole number of at least 1")
    return value


def whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


def number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError("must be a number")
    return value


def positive(value: Any) -> float:
    if not number(value) > 0:
        raise ValueError("must be a positive number")
    return value  # type: ignore[no-any-return]


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a string")
    return value


def words(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str | int | float) for each in value):
        raise ValueError("must be a list of strings")
    return [_as_flag(each) for each in value]


def one_of(known: Collection[str]) -> Rule:
    def read(value: Any) -> Any:
        if value not in known:
            raise ValueError(f"must be one of {', '.join(known)}{nearest(value, known)}")
        return value

    return read, {"enum": list(known)}


def nearest(key: object, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(key).replace("-", "_"), list(known), n=1, cutoff=0.4)
    return f"; did you mean {near[0]}?" if near else ""


def _or_none(rule: Rule) -> Rule:
    reader, schema = rule
    return (lambda value: None if value is None else reader(value)), {"anyOf": [schema, {"type": "null"}]}


COUNT: Rule = count, {"type": "integer", "minimum": 1}
WHOLE: Rule = whole, {"type": "integer"}
POSITIVE: Rule = positive, {"type": "number", "exclusiveMinimum": 0}

SESSION: Mapping[str, tuple[Rule, str]] = {
    "global_batch_size": (COUNT, "samples of one step over all workers; a multiple of micro_batch_size"),
    "micro_batch_size": (COUNT, "samples that a worker computes at once"),
    "batch_rule": (one_of(BATCH_RULES), "what the world size does to the batch"),
    "base_world_size": (COUNT, "fixed_per_worker: the workers that global_batch_size is for"),
    "lr_rule": (one_of(LR_RULES), "how the learning rate follows the batch"),
    "reduction": (one_of(REDUCTIONS), "exact: the same bits for any history of world sizes"),
    "seed": (WHOLE, "of the order of samples and of all random numbers"),
    "max_grad_norm": (_or_none(POSITIVE), "the norm that the gradient is clipped to"),
    "threads": (_or_none(COUNT), "intra-op threads of a worker"),
}
AT: Mapping[str, tuple[Rule, str]] = {
    "global_batch_size": SESSION["global_batch_size"],
    "micro_batch_size": SESSION["micro_batch_size"],
    "lr_scale": (POSITIVE, "the factor on the learning rate, instead of lr_rule's"),
    "max_grad_norm": (POSITIVE, SESSION["max_grad_norm"][1]),
}


# -- flags ------------------------------------------------------------------------------------------------------------


def flag_rule(action: argparse.Action) -> Rule:
    """A flag's value is what argparse would make of the same text; numbers, lists and tables may be written as such."""
    if action.nargs == 0:
        return truth, {"type": "boolean"}
    if action.choices is not None:
        return one_of([str(each) for each in action.choices])
    if action.type is int:
        return WHOLE
    if action.type is float:
        return number, {"type": "number"}
    several = action.dest in LISTS or action.type not in (str, None)
    kinds = ["string", "number"] + ["array"] * several + ["object"] * (action.dest in TABLES)

    def read(value: Any) -> Any:
        if several and isinstance(value, list):
            return words(value) if action.type not in (str, None) else ",".join(words(value))
        if action.dest in TABLES and isinstance(value, dict):
            return ",".join(f"{key}={_as_flag(each)}" for key, each in value.items())
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError("must be a string or a number, as after the flag")
        return action.type(_as_flag(value)) if callable(action.type) else _as_flag(value)

    return read, {"type": kinds}


def _as_flag(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- the whole --------------------------------------------------------------------------------------------------------


def _checked(rule: Rule) -> Any:
    reader, schema = rule
    return Annotated[Any, PlainValidator(reader), WithJsonSchema(schema)]


def _table(name: str, fields: Mapping[str, tuple[Rule, str]]) -> type[BaseModel]:
    made: dict[str, Any] = {key: (_checked(rule), Field(None, description=of)) for key, (rule, of) in fields.items()}
    return create_model(name, __config__=ConfigDict(extra="forbid"), **made)


def job_model(parser: argparse.ArgumentParser) -> type[BaseModel]:
    launch = {
        dest: (flag_rule(action), " ".join((action.help or "").split())) for dest, action in flags(parser).items()
    }
    size = Annotated[str, Field(pattern=r"^[1-9][0-9]*$")]
    strings = {"type": "array", "items": {"type": "string"}}
    fields: dict[str, Any] = {
        "script": (_checked((text, {"type": "string"})), Field("", description=SCRIPT)),
        "args": (_checked((words, strings)), Field([], description="its arguments")),
        "launch": (_table("Launch", launch), Field({}, description="flags of elasticrun")),
        "session": (
            _table("Session", SESSION),
            Field({}, description="arguments of the Session, unless it gives them"),
        ),
        "at": (dict[size, _table("At", AT)], Field({}, description="world size: what differs there")),  # type: ignore
    }
    return create_model("Job", __config__=ConfigDict(extra="forbid", title="A job of elasticrun"), **fields)


SCRIPT = "what stands after the flags; from the current directory"


def json_schema(parser: argparse.ArgumentParser) -> str:
    made = job_model(parser).model_json_schema()
    for table in (made, *made["$defs"].values()):
        for shown in table["properties"].values():
            shown.pop("default", None)
            if shown.get("title"):
                shown.pop("title")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **made}, indent=2) + "\n"


def validate(file: ConfigFile, parser: argparse.ArgumentParser) -> tuple[dict[str, Any], list[str]]:
    """What the file sets (`script`, `args`, `launch`, `session`, `at`), and each mistake as a line of text."""
    try:
        job = job_model(parser).model_validate(file.values)
    except ValidationError as error:
        found = [(each["loc"], _said(each, parser)) for each in error.errors()]
        lines = sorted((file.line(_keys(loc)), f"{file.place(_keys(loc))}: {said}") for loc, said in found)
        return {}, [said for _, said in lines]
    return job.model_dump(exclude_unset=True), []


def _keys(loc: tuple[int | str, ...]) -> Keys:
    return tuple(str(each) for each in loc if each != "[key]")


def _said(error: Any, parser: argparse.ArgumentParser) -> str:
    *above, key = _keys(error["loc"])
    table = f"[{'.'.join(above)}] " if above else ""
    if error["loc"][-1] == "[key]":
        return f"[at.{key}]: the number of workers in the world, such as [at.8]"
    if error["type"] == "extra_forbidden":
        return f"{table}{_unknown(above, key, parser)}"
    if error["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return f"{key} must be a table, [{'.'.join([*above, key])}]"
    return f"{table}{key} = {_shown(error['input'])} {error['msg'].removeprefix('Value error, ')}"


def _unknown(above: list[str], key: str, parser: argparse.ArgumentParser) -> str:
    if above[:1] == ["at"]:
        if key in NOT_AT:
            return f"{key} cannot differ by world size: {NOT_AT[key]}"
        return f"{key} is not known{nearest(key, AT)}"
    known: dict[str, Collection[str]] = {
        "launch": flags(parser),
        "session": SESSION,
        "": ("script", "args", "launch", "session", "at"),
    }
    here = above[0] if above else ""
    for other, keys in known.items():
        if other != here and key in keys:
            return f"{key} belongs under [{other}]" if other else f"{key} stands at the top, before any [table]"
    best = nearest(key, known[here])
    return f"{key} is not known{best or nearest(key, [k for keys in known.values() for k in keys])}"


def _shown(value: object) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)[:60]
