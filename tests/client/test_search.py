"""Search words by command find what they find in the page, as tests/integration/test_page_search.py shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_builder.client import loader, search
from site_builder.client.model import Fleet
from site_builder.client.search import SearchTerm
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.every_state import make_lab
from tests.support.searches import (
    ALL,
    FOUND,
    FOUND_IN_THE_PAGE,
    FOUND_ON_A_MIXED_HOST,
    NOT_FOUND,
    NOT_YET_TYPED,
    make_mixed_lab,
)


def fleet_of(lab: Lab) -> Fleet:
    fleet, why = loader.parse_status((lab.www / "status.json").read_bytes())
    assert fleet, why
    return fleet


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """The fleet in which every state is."""
    return fleet_of(make_lab(tmp_path_factory.mktemp("states")))


def found_in(fleet: Fleet) -> dict[str, str]:
    return {host.name: "".join(str(one.index) for one in host.gpus) for host in fleet.hosts}


@pytest.mark.parametrize(("words", "expected_gpus"), FOUND)
def test_words_find_what_they_find_in_the_page(states: Fleet, words: str, expected_gpus: dict[str, str]) -> None:
    assert found_in(search.match_fleet_search(states, search.parse_search_text(words))) == expected_gpus


@pytest.mark.parametrize(("words", "page_matches"), FOUND_IN_THE_PAGE)
def test_words_that_only_the_page_has_find_nothing(states: Fleet, words: str, page_matches: dict[str, str]) -> None:
    assert found_in(search.match_fleet_search(states, search.parse_search_text(words))) == {} != page_matches


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return fleet_of(make_mixed_lab(tmp_path_factory.mktemp("mixed")))


@pytest.mark.parametrize(("words", "expected_gpus"), FOUND_ON_A_MIXED_HOST)
def test_the_gpus_of_a_mixed_host_are_found_by_their_own_model(
    mixed: Fleet, words: str, expected_gpus: dict[str, str]
) -> None:
    assert found_in(search.match_fleet_search(mixed, search.parse_search_text(words))) == expected_gpus


@pytest.mark.parametrize(("words", "hint"), NOT_FOUND)
def test_words_that_match_nothing_have_a_hint_at_what_works(states: Fleet, words: str, hint: str) -> None:
    terms = search.parse_search_text(words)
    assert found_in(search.match_fleet_search(states, terms)) == {}
    assert next((term.hint for term in terms if term.hint), "") == hint


@pytest.mark.parametrize("words", NOT_YET_TYPED)
def test_a_word_that_is_not_yet_typed_hides_nothing(states: Fleet, words: str) -> None:
    assert search.parse_search_text(words) == []
    assert list(found_in(search.match_fleet_search(states, []))) == ALL


def test_what_fits_keeps_all_else_of_its_host(states: Fleet) -> None:
    before, after = (
        states.find_host("hydra"),
        search.match_fleet_search(states, search.parse_search_text("jupyter")).find_host("hydra"),
    )
    assert before and after
    assert before._replace(gpus=before.gpus[:1]) == after


@pytest.mark.parametrize("words", ["a.b*c", '("a', 'print("a.b*c")', "'print", '"python -c"'])
def test_quotes_within_a_word_are_text(tmp_path: Path, words: str) -> None:
    lab = Lab(tmp_path)
    lab.host("gpu2", gpu(0, 9000, 50), process(), person(command="""python -c 'print("a.b*c")'"""))
    lab.build()
    assert found_in(search.match_fleet_search(fleet_of(lab), search.parse_search_text(words))) == {"gpu2": "0"}


# On a command line


@pytest.mark.parametrize(
    ("arguments", "terms"),
    [
        (["state:free", "mem>20"], [SearchTerm("state", "free"), SearchTerm("mem>", "20", 20)]),
        (["state:free mem>20"], [SearchTerm("state", "free"), SearchTerm("mem>", "20", 20)]),
        (["python eval.py"], [SearchTerm("any", "python eval.py")]),
        (["command:python eval.py"], [SearchTerm("command", "python eval.py")]),
        (['command:"python eval.py" x'], [SearchTerm("command", "python eval.py"), SearchTerm("any", "x")]),
        (["state:free python"], [SearchTerm("state", "free"), SearchTerm("any", "python")]),
        (["Thomas R."], [SearchTerm("any", "thomas r.")]),
        (["", " "], []),
    ],
)
def test_the_quotes_of_the_shell_hold_words_together(arguments: list[str], terms: list[SearchTerm]) -> None:
    assert search.parse_search_arguments(arguments) == terms


@pytest.mark.parametrize(
    ("arguments", "expected_gpus"),
    [
        (["gpu1"], {"gpu1": "01"}),
        (["GPU1", "gpu10.lab.example"], {"gpu1": "01", "gpu10": "0"}),
        (["gpu1", "gpu10", "state:free"], {"gpu1": "1", "gpu10": "0"}),
        (["gpu"], {"gpu1": "01", "gpu10": "0"}),
        (["host:gpu1"], {"gpu1": "01", "gpu10": "0"}),
        (["gpu1", "gpu7"], {}),
        ([], {"gpu1": "01", "gpu10": "0"}),
    ],
)
def test_the_name_of_a_host_is_that_host_alone_and_several_are_all_of_them(
    tmp_path: Path, arguments: list[str], expected_gpus: dict[str, str]
) -> None:
    lab = Lab(tmp_path)
    lab.host("gpu1", gpu(0, 9000, 50) + gpu(1))
    lab.host("gpu10", gpu(0))
    lab.build()
    assert found_in(search.search_fleet(fleet_of(lab), arguments)) == expected_gpus
