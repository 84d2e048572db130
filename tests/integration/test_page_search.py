"""Finding on the board: search, totals, order, groups, folding, the address, the wall screen, and copying."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.browser import Site, at_a_later_second, open_page, served, wait_until
from tests.support.every_state import make_lab
from tests.support.page_checks import find_accessibility_faults
from tests.support.searches import (
    ALL,
    FOUND,
    FOUND_IN_THE_PAGE,
    FOUND_ON_A_MIXED_HOST,
    NOT_FOUND,
    NOT_YET_TYPED,
    make_mixed_lab,
)

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"
ODD = """python -c 'print("a.b*c")'"""
SHOWN = """() => Object.fromEntries([...document.querySelectorAll("main > .host")].filter((card) => !card.hidden)
    .map((card) => [card.id, [...card.querySelectorAll(".gpus > tbody > tr")].filter((row) => !row.hidden)
        .map((row) => row.cells[0].textContent).join("")]))"""
ORDER = """() => [...document.querySelectorAll("main > .host, main > .group")].filter((one) => !one.hidden)
    .map((one) => one.id || `# ${one.textContent}`)"""


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The board on which every state is."""
    folder = tmp_path_factory.mktemp("states")
    lab = make_lab(folder)
    with served(lab.www, folder / "server") as site:
        yield site


@pytest.fixture(scope="module")
def one_board(browser: Browser, states: Site) -> Iterator[Page]:
    with open_page(browser, states.url) as page:
        yield page


@pytest.fixture
def board(one_board: Page) -> Page:
    """The same page for all, as it is when it is opened."""
    one_board.goto(one_board.url.partition("?")[0].partition("#")[0])
    return one_board


class Moving:
    """A small lab that a test changes, with the page that shows it."""

    def __init__(self, lab: Lab, site: Site, page: Page) -> None:
        self.lab, self.site, self.page = lab, site, page

    def builds(self) -> Page:
        """A build, which the page takes over."""
        with at_a_later_second(self.lab):
            self.lab.build()
        built = self.page.evaluate("built")
        self.page.evaluate("refresh()")
        wait_until(self.page, "(before) => built > before && !asking", built)
        return self.page


def fill(lab: Lab, name: str, uses: list[int], model: str = A100, command: str = "python train.py") -> None:
    """A host whose GPUs are so busy; at 0 one is free."""
    rows = [gpu(n, 9000 if use else 4, use, model, f"GPU-{name}-{n}") for n, use in enumerate(uses)]
    jobs = [process(100 + n, f"GPU-{name}-{n}") for n, use in enumerate(uses) if use]
    people = [person(100 + n, "alice", command) for n, use in enumerate(uses) if use]
    lab.host(name, "".join(rows), "".join(jobs), "".join(people))


@pytest.fixture
def moving(browser: Browser, tmp_path: Path) -> Iterator[Moving]:
    lab = Lab(tmp_path)
    fill(lab, "gpu1", [50, 0])
    fill(lab, "gpu2", [90, 90], T4, ODD)
    fill(lab, "gpu10", [0, 0, 10])
    (lab.data / "hosts.txt").write_text("gpu1, , vision\ngpu2, , nlp\n")
    lab.build()
    with served(lab.www, tmp_path / "server") as site, open_page(browser, site.url) as page:
        yield Moving(lab, site, page)


def search(page: Page, words: str) -> dict[str, str]:
    """What is shown of each host after these words were typed."""
    page.locator("[name=q]").fill(words)
    return shown(page)


def shown(page: Page) -> dict[str, str]:
    visible_gpus: dict[str, str] = page.evaluate(SHOWN)
    return visible_gpus


def order(page: Page) -> list[str]:
    host_order: list[str] = page.evaluate(ORDER)
    return host_order


def menu(page: Page, name: str) -> Locator:
    """A control of the View menu, which is open then."""
    page.locator("details.view").evaluate("(menu) => { menu.open = true }")
    return page.locator(f"[name={name}]")


def said(page: Page) -> str:
    return page.locator("form.find output").text_content() or ""


# Search


@pytest.mark.parametrize(("words", "expected_gpus"), [*FOUND, *FOUND_IN_THE_PAGE])
def test_a_search_shows_the_hosts_and_gpus_that_fit_and_no_others(
    one_board: Page, words: str, expected_gpus: dict[str, str]
) -> None:
    assert search(one_board, words) == expected_gpus
    count, hosts = sum(map(len, expected_gpus.values())), len(expected_gpus)
    assert said(one_board) == f"{count} GPU{'s' * (count != 1)} on {hosts} host{'s' * (hosts != 1)}"


@pytest.mark.parametrize(("words", "hint"), NOT_FOUND)
def test_a_search_without_a_match_says_so_with_a_hint_and_a_way_back(one_board: Page, words: str, hint: str) -> None:
    assert search(one_board, words) == {}
    assert said(one_board) == "No match"
    note = one_board.locator(".no-match p").text_content() or ""
    assert note.startswith(f"No GPU or host matches “{words}”.")
    assert note.endswith(hint)
    one_board.get_by_role("button", name="Clear search").click()
    assert list(shown(one_board)) == ALL
    expect(one_board.locator("[name=q]")).to_be_focused()
    expect(one_board.locator(".no-match")).to_have_count(0)


@pytest.fixture(scope="module")
def mixed_board(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("mixed")
    lab = make_mixed_lab(folder)
    with served(lab.www, folder / "server") as site, open_page(browser, site.url) as page:
        yield page


@pytest.mark.parametrize(("words", "expected_gpus"), FOUND_ON_A_MIXED_HOST)
def test_the_gpus_of_a_mixed_host_are_found_by_their_own_model(
    mixed_board: Page, words: str, expected_gpus: dict[str, str]
) -> None:
    assert search(mixed_board, words) == expected_gpus


@pytest.mark.parametrize("words", ["ago", "copy", "ssh", "left"])
def test_words_of_the_page_itself_are_not_found(one_board: Page, words: str) -> None:
    assert search(one_board, words) == {}


@pytest.mark.parametrize("words", NOT_YET_TYPED)
def test_a_word_that_is_not_yet_typed_hides_nothing(one_board: Page, words: str) -> None:
    assert list(search(one_board, words)) == ALL
    assert said(one_board) == ""


@pytest.mark.parametrize("words", ["a.b*c", '("a', 'print("a.b*c")', "'print", '"python -c"'])
def test_quotes_within_a_word_are_text(moving: Moving, words: str) -> None:
    assert search(moving.page, words) == {"gpu2": "01"}


def test_a_gpu_that_becomes_free_appears_in_a_search_for_free_ones(moving: Moving) -> None:
    assert search(moving.page, "state:free") == {"gpu1": "1", "gpu10": "01"}
    fill(moving.lab, "gpu2", [90, 0], T4)
    fill(moving.lab, "gpu10", [9, 9, 9])
    fill(moving.lab, "gpu3", [0, 5])
    moving.builds()
    assert shown(moving.page) == {"gpu1": "1", "gpu2": "1", "gpu3": "0"}
    assert said(moving.page) == "3 GPUs on 3 hosts"
    assert moving.page.locator("[name=q]").input_value() == "state:free"


def test_a_link_to_a_host_that_a_search_hides_shows_it(board: Page) -> None:
    search(board, "user:alice")
    board.evaluate("location.hash = 'nile'")
    expect(board.locator("#nile")).to_be_in_viewport()
    assert board.locator("[name=q]").input_value() == ""


# Totals


def test_a_total_is_a_button_that_searches_for_its_state_and_back(board: Page) -> None:
    free, busy = (board.locator(".totals").get_by_role("button", name=name) for name in ("Free", "Busy"))
    expect(free).to_have_attribute("aria-pressed", "false")
    free.click()
    expect(free).to_have_attribute("aria-pressed", "true")
    assert shown(board) == {"atlas": "2", "hydra": "3", "nile": "0"}
    busy.click()
    expect(free).to_have_attribute("aria-pressed", "false")
    expect(busy).to_have_attribute("aria-pressed", "true")
    busy.click()
    assert list(shown(board)) == ALL


@pytest.mark.parametrize("word", ["STATE:FREE", "Free"])
def test_a_total_keeps_the_other_words_of_a_search(board: Page, word: str) -> None:
    search(board, f"tag:vision {word}")
    free = board.locator(".totals").get_by_role("button", name="Free")
    expect(free).to_have_attribute("aria-pressed", "true")
    free.click()
    assert board.locator("[name=q]").input_value() == "tag:vision"


def test_a_total_that_moves_stays_pressed_and_keeps_the_focus(moving: Moving) -> None:
    busy = moving.page.locator(".totals").get_by_role("button", name="Busy")
    busy.click()
    fill(moving.lab, "gpu10", [9, 9, 9])
    moving.builds()
    expect(busy).to_have_text("6 Busy")
    expect(busy).to_have_attribute("aria-pressed", "true")
    expect(busy).to_be_focused()


# Order, groups, folding


def test_hosts_are_sorted_by_free_gpus_and_by_use_and_back(moving: Moving) -> None:
    page = moving.page
    menu(page, "sort").select_option("free")
    assert order(page) == ["gpu10", "gpu1", "gpu2"]
    menu(page, "sort").select_option("use")
    assert order(page) == ["gpu2", "gpu1", "gpu10"]
    menu(page, "sort").select_option("name")
    assert order(page) == ["gpu1", "gpu2", "gpu10"]


def test_the_order_follows_the_numbers_and_new_hosts_come_in_at_their_place(moving: Moving) -> None:
    page = moving.page
    menu(page, "sort").select_option("use")
    fill(moving.lab, "gpu10", [99, 99, 99])
    fill(moving.lab, "gpu0", [40])
    moving.builds()
    assert order(page) == ["gpu10", "gpu2", "gpu0", "gpu1"]


def test_names_are_in_the_order_of_the_builder(moving: Moving) -> None:
    for name in ("b_1", "b-1", "b.1", "9z", "B2", "bb", "b"):
        fill(moving.lab, name, [1])
    names = order(moving.builds())
    assert len(names) == 10
    menu(moving.page, "sort").select_option("use")
    assert order(moving.page) != names
    menu(moving.page, "sort").select_option("name")
    assert order(moving.page) == names


def test_hosts_are_grouped_under_headings_by_model_and_by_tag(moving: Moving) -> None:
    page = moving.page
    menu(page, "group").select_option("model")
    assert order(page) == ["# A100 80 GB", "gpu1", "gpu10", "# T4 80 GB", "gpu2"]
    menu(page, "group").select_option("tag")
    assert order(page) == ["# nlp", "gpu2", "# vision", "gpu1", "# without a tag", "gpu10"]
    expect(page.get_by_role("heading", name="vision", exact=True)).to_be_visible()
    menu(page, "group").select_option("")
    assert order(page) == ["gpu1", "gpu2", "gpu10"]


def test_groups_follow_the_board_and_hide_with_their_hosts(moving: Moving) -> None:
    page = moving.page
    menu(page, "group").select_option("model")
    search(page, "state:free")
    assert order(page) == ["# A100 80 GB", "gpu1", "gpu10"]
    fill(moving.lab, "gpu5", [0], T4)
    moving.builds()
    assert order(page) == ["# A100 80 GB", "gpu1", "gpu10", "# T4 80 GB", "gpu5"]


def test_a_card_that_is_moved_keeps_the_focus(moving: Moving) -> None:
    page = moving.page
    menu(page, "sort").select_option("use")
    page.locator("#gpu10 summary").focus()
    fill(moving.lab, "gpu10", [99, 99, 99])
    moving.builds()
    assert order(page)[0] == "gpu10"
    expect(page.locator("#gpu10 summary")).to_be_focused()


def test_a_card_folds_opens_and_summarizes_its_gpus(moving: Moving) -> None:
    page = moving.page
    button = page.locator("#gpu1 button.fold")
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(button).to_have_accessible_name("GPUs of gpu1")
    button.click()
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(page.locator("#gpu1 .gpus")).to_be_hidden()
    fill(moving.lab, "gpu1", [0, 0])
    moving.builds()
    expect(page.locator("#gpu1 .gpus")).to_be_hidden()
    expect(button).to_have_accessible_name("GPUs of gpu1: 2 free")
    button.click()
    expect(page.locator("#gpu1 .gpus")).to_be_visible()


def test_all_cards_fold_and_open_also_those_that_come_later(moving: Moving) -> None:
    page = moving.page
    menu(page, "fold").click()
    fill(moving.lab, "gpu3", [0])
    moving.builds()
    assert [gpu_section.is_visible() for gpu_section in page.locator(".gpus").all()] == [False] * 4
    page.locator("#gpu3 button.fold").click()
    expect(page.locator("#gpu3 .gpus")).to_be_visible()
    menu(page, "open").click()
    assert [gpu_section.is_visible() for gpu_section in page.locator(".gpus").all()] == [True] * 4


def test_a_host_without_gpus_says_why_also_when_all_are_folded(moving: Moving) -> None:
    page = moving.page
    menu(page, "fold").click()
    moving.lab.write("gpu2", "gpus.csv", "# err no driver\n", rc=9)
    moving.builds()
    expect(page.locator("#gpu2 .note")).to_contain_text("no driver")


# The address


def test_each_choice_stands_in_the_address_and_is_no_step_of_the_history(board: Page) -> None:
    before = board.evaluate("history.length")
    search(board, 'tag:vision "a&b=c#d"')
    menu(board, "sort").select_option("free")
    menu(board, "group").select_option("tag")
    board.locator("#atlas button.fold").evaluate("(button) => button.click()")
    address = board.evaluate("Object.fromEntries(new URLSearchParams(location.search))")
    assert address == {"q": 'tag:vision "a&b=c#d"', "sort": "free", "group": "tag", "folded": "atlas"}
    assert board.evaluate("history.length") == before
    search(board, "")
    menu(board, "sort").select_option("name")
    menu(board, "group").select_option("")
    menu(board, "open").click()
    assert board.evaluate("location.search") == ""


def view(page: Page) -> tuple[object, ...]:
    """All that a choice makes different."""
    chosen = page.evaluate("[...document.forms[0].elements].map((one) => one.value)")
    return chosen, shown(page), order(page), page.locator(".closed").count(), said(page)


def test_a_reload_and_a_bookmark_show_the_same(browser: Browser, board: Page) -> None:
    search(board, "state:free")
    menu(board, "sort").select_option("free")
    menu(board, "group").select_option("model")
    menu(board, "fold").click()
    board.locator("#hydra button.fold").click()
    before = view(board)
    assert before[3] == 5  # of six with GPUs
    board.reload()
    assert view(board) == before
    with open_page(browser, board.url) as page:
        assert view(page) == before


@pytest.mark.parametrize(
    "odd", ["?sort=constructor&group=x&folded=nobody&open=&x=1", "?q=", "?folded=&sort=&group=", "?%ff&q&sort"]
)
def test_an_odd_address_is_the_plain_board(board: Page, odd: str) -> None:
    board.goto(board.url + odd)
    assert list(shown(board)) == ALL
    assert board.locator(".closed").count() == 0
    assert [board.locator(f"[name={name}]").input_value() for name in ("q", "sort", "group")] == ["", "name", ""]


# The wall screen


def test_a_wall_screen_has_no_controls_and_large_letters(board: Page) -> None:
    size = "parseFloat(getComputedStyle(document.querySelector('#atlas h2')).fontSize)"
    before = board.evaluate(size)
    board.goto(f"{board.url}?wall&q=state:free")
    assert shown(board) == {"atlas": "2", "hydra": "3", "nile": "0"}
    assert [control for control in board.locator("button, input, select").all() if control.is_visible()] == []
    assert board.evaluate(size) > before
    assert board.locator("#atlas .squares i:visible").count() == 1


OUT_OF_SIGHT = """() => [...document.querySelectorAll(".totals li, .free-now > *, .host, .squares i, .wall-problem")]
    .filter((one) => one.checkVisibility())
    .filter((one) => {
        const place = one.getBoundingClientRect();
        return place.bottom > innerHeight + 1 || place.right > innerWidth + 1 || place.top < 0;
    }).map((one) => one.id || one.className)"""


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (3840, 2160), (1280, 720)])
def test_all_of_a_wall_screen_is_in_sight(browser: Browser, states: Site, width: int, height: int) -> None:
    with open_page(browser, f"{states.url}?wall", width, height) as page:
        assert page.evaluate(OUT_OF_SIGHT) == []
        square = page.locator("#atlas .squares i").first.bounding_box()
        assert square
        assert square["width"] > height / 40


def test_only_the_problems_of_a_wall_screen_take_turns(browser: Browser, states: Site) -> None:
    context = browser.new_context(viewport={"width": 1920, "height": 1080})
    page = context.new_page()
    page.clock.install(time=datetime.now(timezone.utc))
    page.goto(f"{states.url}?wall")
    problems = []
    for _ in range(6):
        problems.append(page.locator(".wall-problem").inner_text().split(" ", 1)[1].strip())
        page.clock.run_for(8000)
    context.close()
    assert problems[0].startswith("ganges stale")
    assert len(set(problems)) == 6
    assert {problem.split()[0].split(":")[0] for problem in problems} <= {*ALL} - {"rhine"}  # which is in maintenance


# Keyboard alone


def test_a_slash_leads_to_the_search_box_but_not_while_typing(board: Page) -> None:
    box = board.locator("[name=q]")
    board.keyboard.press("/")
    expect(box).to_be_focused()
    expect(box).to_have_value("")
    board.keyboard.type("a/b")
    expect(box).to_have_value("a/b")


def test_escape_empties_the_search_box(board: Page) -> None:
    board.keyboard.press("/")
    board.keyboard.type("atlas")
    assert list(shown(board)) == ["atlas"]
    board.keyboard.press("Escape")
    assert list(shown(board)) == ALL
    assert board.evaluate("location.search") == ""
    expect(board.locator("[name=q]")).to_be_focused()


def test_tab_goes_through_the_page_from_top_to_bottom_and_is_seen(board: Page) -> None:
    names = []
    for _ in range(40):
        board.keyboard.press("Tab")
        names.append(
            board.evaluate(
                """() => {
                    const one = document.activeElement;
                    if (getComputedStyle(one).outlineStyle === "none") throw new Error(`not seen: ${one.outerHTML}`);
                    return one.name || one.getAttribute("aria-label") || one.textContent;
                }"""
            )
        )
    assert names[:7] == ["Skip to hosts", "Board", "Calendar", "People", "Fleet", "q", "View"]
    places = [names.index(name) for name in ("count", "3 Free", "atlas:2", "GPUs of atlas", "Copy ssh atlas")]
    assert places == sorted(places)
    assert names.index("Copy CUDA_VISIBLE_DEVICES=2") < names.index("GPUs of ganges")


def test_enter_and_space_press_what_has_the_focus(board: Page) -> None:
    board.locator(".totals button").first.focus()
    board.keyboard.press("Enter")
    assert shown(board) == {"atlas": "2", "hydra": "3", "nile": "0"}
    board.keyboard.press("Space")
    assert list(shown(board)) == ALL
    board.locator("#atlas button.fold").focus()
    board.keyboard.press("Space")
    expect(board.locator("#atlas .gpus")).to_be_hidden()
    menu(board, "group").focus()
    board.keyboard.press("ArrowDown")
    assert "# H100 80 GB" in order(board)


def test_tab_past_the_end_of_the_view_menu_closes_it(board: Page) -> None:
    board.locator("details.view > summary").focus()
    board.keyboard.press("Enter")
    panel = board.locator("details.view .panel")
    expect(panel).to_be_visible()
    board.locator("details.view [name=open]").focus()
    expect(panel).to_be_visible()
    board.keyboard.press("Tab")
    expect(panel).to_be_hidden()


# For every eye and ear


def test_every_control_has_a_name(board: Page) -> None:
    board.locator("details.view > summary").click()
    controls = [board.locator(f"{tag}:visible") for tag in ("button", "select", "input", "summary")]
    names = [control.aria_snapshot() for controls_of_tag in controls for control in controls_of_tag.all()]
    assert len(names) > 20
    assert [name for name in names if '"' not in name and ":" not in name] == []


def test_axe_finds_nothing_on_a_board_with_choices(browser: Browser, states: Site) -> None:
    with open_page(browser, f"{states.url}?q=state:free&group=model&folded=nile&sort=free") as page:
        page.locator("#atlas .copy").first.wait_for()
        page.locator("#nile .fold").wait_for()
        assert order(page)[0].startswith("# ")
        assert find_accessibility_faults(page) == []


# Copying


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("#hydra tr.free .copy", "CUDA_VISIBLE_DEVICES=3"),
        ("#hydra header .copy", "ssh hydra"),
        ("#nile strong .copy", "kill 611 612"),
    ],
)
def test_a_click_copies_what_one_types_next(
    browser: Browser, states: Site, place: str, text: str, secure: bool
) -> None:
    with open_page(browser, states.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.evaluate("navigator.clipboard.writeText('nothing yet')")
        page.evaluate("window.reader = navigator.clipboard")
        if not secure:  # as over plain http
            page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        page.locator(place.split(maxsplit=1)[0]).scroll_into_view_if_needed()
        button = page.locator(place)
        expect(button).to_have_accessible_name(f"Copy {text}")
        assert page.locator(".said").evaluate("(one) => one.checkVisibility()")  # else nobody hears what comes into it
        button.click()
        expect(page.get_by_role("status").filter(has_text="Copied")).to_have_text(f"Copied: {text}")
        assert page.evaluate("reader.readText()") == text
        expect(button).to_be_focused()
        assert page.locator("textarea").count() == 0


def test_what_could_not_be_copied_is_reported(browser: Browser, states: Site) -> None:
    with open_page(browser, states.url) as page:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        page.evaluate("document.execCommand = () => false")
        page.locator("#atlas header .copy").click()
        expect(page.get_by_role("status").filter(has_text="ssh")).to_have_text("Not copied: ssh atlas")


def test_a_gpu_that_is_taken_has_nothing_to_copy(moving: Moving) -> None:
    expect(moving.page.locator("#gpu1 tr.free .copy")).to_have_count(1)
    fill(moving.lab, "gpu1", [50, 50])
    moving.builds()
    expect(moving.page.locator("#gpu1 .gpus .copy")).to_have_count(0)
    expect(moving.page.locator("#gpu1 header .copy")).to_have_count(1)
