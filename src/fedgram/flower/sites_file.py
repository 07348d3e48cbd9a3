"""Sites of a federation on one machine: a sites.toml file, or the clients of a dataset.

inputs = ["a", "b"]            # keys of the run config, which all sites share
targets = ["y"]
categories = ["b"]             # optional: inputs that are text or codes
fill = "median"                # optional: fill missing inputs

[sites.oslo]
table = "oslo.csv"             # the whole file

[sites.bergen]
table = "coast.csv"            # the rows whose 'town' is 'bergen'
column = "town"

Without sections, `table` and `column` name a site for every value in that column.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.text import join_names, quote_list, split_names
from fedgram.data.datasets import registry
from fedgram.data.problem import Problem
from fedgram.data.site_summary import Impute, pool_levels, pool_median
from fedgram.data.split import Split
from fedgram.data.splits import split_by_projection
from fedgram.data.tables.read_rows import list_clients
from fedgram.data.validation import check_unique_columns, client_name
from fedgram.flower.config import KEYS, read_categories, read_number
from fedgram.flower.site import Site
from fedgram.theory.validation import check_names

SITE_KEYS = ("table", "column", "value", "folder", "device")
"""Keys of a site. `value` is the site's value in `column`, by default its name."""
COLUMN_KEYS = ("inputs", "targets", "test-fraction", "time", "categories", "fill", "drop-missing")
"""Keys of the run config that apply to tables; a dataset has its own columns and test rows."""
PARTITION = "partition-id"
"""Key that Flower's simulation gives a node: its number from 0."""


@dataclass(frozen=True)
class SitesConfig:
    """The run config, and the node config of every site by name."""

    run_config: dict[str, Any]
    nodes: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, path: str | Path) -> SitesConfig:
        """Read a sites.toml file; paths in it are relative to its folder."""
        document = _read_toml(Path(path))
        sites = document.pop("sites", {})
        shared = {key: document.pop(key) for key in SITE_KEYS if key in document}
        _check_keys(document, KEYS, f"'{path}'")
        run_config = {key: _to_text(value) for key, value in document.items()}
        if "dataset" in document:
            sections = {"sites": sites} if sites else {}
            _check_dataset_keys({**sections, **shared, **document}, Path(path))
            found = cls.from_dataset(str(document["dataset"]), document.get("clients"))
            own = _make_absolute(shared, Path(path))
            return cls(found.run_config | run_config, {name: dict(own) for name in found.nodes})
        if "clients" in document:
            raise InputError(
                f"'clients' of '{path}' applies to a dataset; here sections name the sites. Remove it.",
                field="clients",
            )
        if not sites and isinstance(column := shared.get("column"), str):  # a table is read for each value
            columns = (split_names(str(run_config.get(key, ""))) for key in ("inputs", "targets"))
            check_unique_columns((column, *chain.from_iterable(columns)))
        nodes = _build_nodes(sites, shared, Path(path))
        origin = {"clients": len(nodes), "sites": str(Path(path).absolute())}
        return cls({"name": Path(path).stem} | run_config | origin, nodes)

    @classmethod
    def from_dataset(cls, dataset: str, clients: int | None = None) -> SitesConfig:
        """Use the clients of a named dataset, or this many groups of its rows by target projection."""
        problem = load_clients(dataset, clients)
        run_config = {
            "name": problem.name,
            "kind": problem.kind,
            "dataset": dataset,
            "clients": len(problem.clients),
        }
        return cls(run_config, {name: {} for name in problem.clients})

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Any]) -> SitesConfig | None:
        """Find the sites of a run config by its key 'sites' (a file) or 'dataset'; None without both."""
        if path := run_config.get("sites"):
            return cls.read(str(path))
        if dataset := run_config.get("dataset"):
            return cls.from_dataset(str(dataset), run_config.get("clients"))
        return None

    def with_settings(self, **settings: Any) -> SitesConfig:
        """Override keys of the run config, with '_' for '-'; None keeps a key."""
        given = {key.replace("_", "-"): value for key, value in settings.items() if value is not None}
        return replace(self, run_config=self.run_config | given)

    def with_summaries(self) -> SitesConfig:
        """Find the levels of categories that are only named, and medians to fill, in the tables of all sites.

        A missing number becomes the row-weighted median of the sites' medians, as in `Encoding.fit`.
        """
        given, fill = (str(self.run_config.get(key, "")) for key in ("categories", "fill"))
        names = () if given.startswith("{") else tuple(dict.fromkeys(split_names(given)))
        impute: Impute = "median" if fill == "median" else None
        if not names and impute is None:
            return self
        categories = names or tuple(read_categories(self.run_config))
        inputs = split_names(str(self.run_config.get("inputs", "")))
        numbers = tuple(name for name in inputs if impute and name not in categories)
        found = {
            site: Site.summarize_inputs(self.node_config(site), numbers, names, impute) for site in self.nodes
        }
        by_column = {name: {site: each[name] for site, each in found.items()} for name in (*numbers, *names)}
        settings = {}
        if names:
            settings["categories"] = json.dumps({name: pool_levels(name, by_column[name]) for name in names})
        if impute:
            medians = {name: pool_median(name, by_column[name]) for name in numbers}
            settings["fill"] = json.dumps(medians | dict.fromkeys(categories, ""))
        return self.with_settings(**settings)

    def node_config(self, name: str) -> dict[str, Any]:
        """Return the complete node config of a site; by default its private folder is below `out`."""
        folder = Path(str(self.run_config.get("out", "runs"))) / "private"
        return {"folder": str(folder.absolute()), **self.nodes[name], "site": name}


def read_site(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Site:
    """Read the rows that a node's config names: a table, or a client of a dataset.

    In a simulation all nodes have the same config but for their number, which selects the site.
    """
    if "site" not in node_config and PARTITION in node_config:
        node_config = _find_node_config(int(node_config[PARTITION]), run_config)
    if dataset := run_config.get("dataset"):
        return _read_dataset_site(str(dataset), node_config, run_config)
    return Site.from_config(node_config, run_config)


@cache
def load_clients(dataset: str, clients: int | None = None) -> Problem:
    """Load a named dataset; with another number of clients than its own, split its rows by projection."""
    problem = registry.load(dataset)
    if clients in (None, len(problem.clients)):
        return problem
    train, test = (
        Split.concatenate(part.values()) for part in (problem.train, problem.test or problem.train)
    )
    splits = split_by_projection(train, test if problem.test else test.take(slice(0)), clients)
    return replace(problem, train=splits[0], test=splits[1])


def _find_node_config(number: int, run_config: Mapping[str, Any]) -> dict[str, Any]:
    sites = SitesConfig.from_run_config(run_config)
    if sites is None:
        raise InputError(
            "A simulated node has no rows. Set 'sites' or 'dataset' in the run config.", field="sites"
        )
    names = list(sites.nodes)
    if number >= len(names):
        raise InputError(
            f"The simulation has a node {number}, but there are {len(names)} sites. Set num-supernodes to "
            f"{len(names)}.",
            field="num-supernodes",
        )
    return sites.with_settings(out=run_config.get("out")).node_config(names[number])


def _read_dataset_site(dataset: str, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Site:
    problem, name = load_clients(dataset, run_config.get("clients")), str(node_config.get("site"))
    if name not in problem.train:
        raise InputError(
            f"Unknown client of the dataset '{dataset}': '{name}'. Use one of {quote_list(problem.clients)}.",
            field="site",
        )
    return Site(
        name, problem.train[name], problem.test.get(name), problem.target_names,
        backbone=str(run_config.get("backbone", "resmlp")), folder=str(node_config.get("folder", "private")),
        device=str(node_config.get("device", "auto")),
    )  # fmt: skip


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"Cannot read '{path}': {error.strerror}.", field=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"Cannot parse '{path}' as TOML: {error}.", field=str(path)) from None


def _to_text(value: Any) -> Any:
    """Write a list or a table as text: a run config has neither."""
    if isinstance(value, list):
        return join_names(value)
    return json.dumps(value) if isinstance(value, dict) else value


def _check_keys(given: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, 1)
            advice = f"Use '{near[0]}'" if near else f"Known keys are {', '.join(sorted(known))}"
            raise InputError(f"Unknown key in {where}: '{key}'. {advice}.", field=key)


def _build_nodes(sites: Any, shared: Mapping[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    if sites == {} and "table" in shared and "column" in shared:
        table = _build_node(shared, "", path)["table"]
        sites = {name: {} for name in list_clients(table, str(shared["column"]))}
    is_table = isinstance(sites, dict) and all(isinstance(own, dict) for own in sites.values())
    if not is_table or len(sites) < 2:
        raise InputError(
            f"'{path}' needs at least two sites. Add a section [sites.NAME] with a table for each, or one "
            "table and the column that names the site of each row.",
            field="sites",
        )
    check_names(tuple(sites), len(sites), "site", f" in '{path}'")
    for name, own in sites.items():
        _check_keys(own, SITE_KEYS, f"[sites.{name}] of '{path}'")
    nodes = {name: _build_node({**shared, **own}, name, path) for name, own in sites.items()}
    _check_own_rows(nodes, path)
    return nodes


def _check_dataset_keys(given: Mapping[str, Any], path: Path) -> None:
    """Reject keys that would have no effect, since a dataset has its own sites and columns."""
    known = {*KEYS, "folder", "device"} - {*COLUMN_KEYS, "sites"}
    for key in given:
        if key not in known:
            raise InputError(
                f"'{key}' has no effect next to 'dataset' in '{path}', which has its own sites and columns. "
                "Remove one of the two.",
                field=key,
            )
    if "clients" in given:
        read_number(given, "clients", minimum=2, whole=True)


def _check_own_rows(nodes: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Reject two sites with the same rows: one would be tested on what the other has trained on."""
    owners: dict[str, dict[tuple[str, str] | None, str]] = {}
    for name, node in nodes.items():
        others = owners.setdefault(str(Path(node["table"]).resolve()), {})
        rows = (node["column"], node["value"]) if "column" in node else None  # None: the whole table
        shared = (owner for part, owner in others.items() if part == rows or None in (part, rows))
        if (owner := next(shared, None)) is not None:
            raise InputError(
                f"Sites '{owner}' and '{name}' of '{path}' have the same rows. Give each a table, or a "
                "'column' that tells them apart.",
                client=name,
                field="sites",
            )
        others[rows] = name


def _build_node(own: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Make paths absolute, and let a site's name be its value in the column."""
    if not isinstance(own.get("table"), str):
        raise InputError(f"[sites.{name}] of '{path}' needs a table. Add table = \"FILE\".", field="table")
    if "value" in own and "column" not in own:
        raise InputError(
            f"[sites.{name}] of '{path}' has a value, but no column in which rows have it. Add column = "
            '"NAME".',
            field="column",
        )
    value = {"value": client_name(own.get("value", name.strip()))} if "column" in own else {}
    return _make_absolute(own, path, f" of [sites.{name}]") | value


def _make_absolute(own: Mapping[str, Any], path: Path, place: str = "") -> dict[str, Any]:
    """Make paths of a site's keys absolute; values that are no text are refused."""
    for key, value in own.items():
        if not isinstance(value, str) and (key != "value" or isinstance(value, list | dict)):
            kind = "a path" if key in ("table", "folder") else "text"
            raise InputError(
                f"Invalid '{key}'{place} in '{path}': {value!r}. Use {kind} in quotes.", field=key
            )
    places = {key: str(path.absolute().parent / own[key]) for key in ("table", "folder") if key in own}
    return {**own, **places}
