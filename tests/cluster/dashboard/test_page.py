"""The dashboard's page in a real browser, with a played training behind it."""

import json
import re
import time
from contextlib import closing
from functools import partial
from threading import Event
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tensorflowonspark.driver.dashboard.page import report_html, save_report
from tensorflowonspark.driver.nodes import NodeState
from tests.support.chromium import set_media, set_size
from tests.support.played_training import PlayedTraining, with_failure

_SECONDS = 20
_HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
def training():
    """A training of two workers, one of which is slow, with a restart."""
    return with_failure(PlayedTraining(2, begin=time.time() - 123))


@pytest.fixture
def page(browser, training):
    """The browser with the page of that training, which it shows."""
    with closing(training.serve()) as dashboard:
        show(browser, dashboard.url)
        browser.dashboard = dashboard
        yield browser
        complaints(browser)


def show(browser, url):
    browser.get(url)
    wait(browser, lambda: text(browser, "connection").startswith(("live", "Report")))
    wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#nodes tbody tr"))


def wait(browser, until):
    WebDriverWait(browser, _SECONDS, poll_frequency=0.1).until(lambda _: until())


def text(browser, name):
    return browser.find_element(By.ID, name).text


def cells(browser, selector="#nodes tbody tr"):
    script = (
        "return [...document.querySelectorAll(arguments[0])].map(row => [...row.cells].map(cell => cell.innerText))"
    )
    return browser.execute_script(script, selector)


def colors(browser, selector):
    """Return how many different colours each canvas has, of those that a selector finds."""
    script = """return [...document.querySelectorAll(arguments[0])].map(canvas => {
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return new Set(new Uint32Array(data.buffer)).size;
    })"""
    return browser.execute_script(script, selector)


def complaints(browser):
    """Fail if the page has logged an error, or asked another host."""
    messages = [each["message"] for each in browser.get_log("browser")]
    assert not [each for each in messages if "willReadFrequently" not in each]  # which is about the tests' own reads
    hosts = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = urlsplit(message["params"]["request"]["url"])
            hosts.add(url.hostname if url.scheme not in ("data", "about", "file") else None)
    assert hosts <= {"127.0.0.1", None}


def test_without_the_token_the_page_is_refused(browser, training):
    with closing(training.serve()) as dashboard:
        browser.get(dashboard.url.partition("?")[0])
        assert "only for those who have its token" in browser.find_element(By.TAG_NAME, "body").text
        browser.get_log("browser")  # Chromium logs the status


def test_nodes_totals_and_advice_are_shown(page):
    names = [row[0] for row in cells(page)]
    assert names == ["worker:1straggler", "worker:0"]  # problems first
    assert [row[1] for row in cells(page)] == ["10.0.0.12", "10.0.0.11"]
    assert "Straggler: the other workers wait for worker:1 on 10.0.0.12" in text(page, "notices")
    assert "Advice: waiting for other workers bounded it" in text(page, "notices")
    assert "epoch\n7" in text(page, "totals")
    assert "restarts\n1" in text(page, "totals")
    assert re.search(r"goodput\n\d+ %", text(page, "totals"))
    assert "repeated steps" in page.find_element(By.CSS_SELECTOR, "[data-name=goodput]").get_attribute("title")
    assert page.title == "running · digits.py"
    assert text(page, "count") == "2 nodes, 1 with a problem (first)"


def test_curves_are_drawn_with_the_failures_on_them(page):
    titles = [each.text for each in page.find_elements(By.CSS_SELECTOR, "#charts h3")]
    assert titles[:3] == ["loss", "accuracy", "Rows per second, all nodes"]
    assert "Where the time goes, mean of the nodes" in titles
    assert not [each for each in titles if "GPU" in each]
    assert all(count > 10 for count in colors(page, "#charts canvas"))
    assert "failure" in text(page, "marks")
    red = page.execute_script("""const plot = charts.get("charts rows").plot, ratio = devicePixelRatio;
      const time = model.events.find(each => each[1] === "failure")[0];
      const x = Math.round(plot.valToPos(time, "x", true));
      const [r, g] = plot.ctx.getImageData(x - 1, plot.bbox.top + 20, 3, 1).data.reduce(
        (sums, value, place) => { sums[place % 4] += value; return sums; }, [0, 0, 0, 0]);
      return r > 1.5 * g""")
    assert red
    assert [row[1] for row in cells(page, "#events tbody tr")] == ["▸ started", "↻ restart", "✕ failure", "▸ started"]


def test_charts_keep_their_order_whichever_has_values_first(browser):
    training = PlayedTraining(2, begin=time.time() - 12)
    training.play(5)
    with closing(training.serve()) as dashboard:
        show(browser, dashboard.url)
        wait(browser, lambda: len(colors(browser, "#charts canvas")) == 5)
        training.play(5)
        wait(browser, lambda: len(colors(browser, "#charts canvas")) == 7)
        titles = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#charts h3")]
        assert titles[:3] == ["loss", "accuracy", "Rows per second, all nodes"]
        complaints(browser)


def test_changes_appear(page, training):
    training.nodes[0].state = NodeState.FAILED
    training.note("failure", "worker:0 on 10.0.0.11 was killed again", "worker:0")
    wait(page, lambda: "killed again" in text(page, "events"))
    assert "Failed: worker:0 on 10.0.0.11" in text(page, "notices")
    assert cells(page)[0][:3] == ["worker:0", "10.0.0.11", "failed"]


def test_a_click_shows_the_lines_and_curves_of_a_node(page, training):
    training.store.take_lines(training.nodes[1], ("\x1b[31mthe last line\x1b[0m",))
    page.find_element(By.CSS_SELECTOR, "#nodes tbody button").click()
    wait(page, lambda: text(page, "lines").endswith("\nthe last line"))
    assert text(page, "detail-title") == "worker:1 on 10.0.0.12"
    wait(page, lambda: len(colors(page, "#detail-charts canvas")) == 5)
    assert all(count > 10 for count in colors(page, "#detail-charts canvas"))
    training.store.take_lines(training.nodes[1], ("another line",))
    wait(page, lambda: text(page, "lines").endswith("another line"))
    page.find_element(By.ID, "close").click()
    assert not page.find_element(By.ID, "detail").is_displayed()


def test_the_keyboard_is_enough(page):
    for _ in range(40):
        page.switch_to.active_element.send_keys(Keys.TAB)
        if page.switch_to.active_element.text == "worker:0":
            break
    page.switch_to.active_element.send_keys(Keys.ENTER)
    wait(page, lambda: text(page, "detail-title") == "worker:0 on 10.0.0.11")
    labels = page.execute_script(
        """const all = "input, select, button, a:not([hidden]), [role=img]:not([hidden])";
        return [...document.querySelectorAll(all)].filter(
          each => !(each.labels && each.labels.length) && !each.textContent.trim() && !each.getAttribute("aria-label"))
          .map(each => each.outerHTML)"""
    )
    assert not labels


def test_dark_and_light_follow_the_system_or_the_user(page):
    def ground():
        script = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        return max(page.execute_script(script))

    assert ground() > 200
    set_media(page, dark=True)
    assert ground() < 60
    button = page.find_element(By.ID, "theme")
    button.click()
    assert (button.text, ground() > 200) == ("Theme: light", True)
    set_media(page, dark=False)
    button.click()
    assert (button.text, ground() < 60) == ("Theme: dark", True)
    page.refresh()
    wait(page, lambda: text(page, "theme") == "Theme: dark")
    page.find_element(By.ID, "theme").click()
    assert text(page, "theme") == "Theme: as the system"


@pytest.mark.parametrize("dark", [False, True])
def test_texts_have_enough_contrast(page, dark):
    """At least 4.5 to 1, as WCAG's level AA asks for, between each text and what is behind it."""
    set_media(page, dark=dark)
    poor = page.execute_script("""
      const light = (color) => color.map(each => each / 255).map(
        each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4).reduce(
        (sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
      const parse = (text) => text.match(/[\\d.]+/g).map(Number);
      const ground = (node) => {
        for (; node; node = node.parentElement) {
          const found = parse(getComputedStyle(node).backgroundColor);
          if (found.length < 4 || found[3] > 0) return found.slice(0, 3);
        }
        return [255, 255, 255];
      };
      const found = [];
      for (const node of document.querySelectorAll("body *")) {
        const hasText = [...node.childNodes].some(each => each.nodeType === 3 && each.data.trim());
        if (!node.getClientRects().length || !hasText) continue;
        const [a, b] = [light(parse(getComputedStyle(node).color).slice(0, 3)), light(ground(node))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5 && !node.disabled) found.push(`${node.tagName} ${node.className} ${node.textContent} ${ratio}`);
      }
      return found""")
    assert not poor


@pytest.mark.parametrize("width", [320, 800, 1920])
def test_the_page_fits_into_windows_of_any_width(page, width):
    set_size(page, width, 900)
    wait(page, lambda: page.execute_script("return document.documentElement.scrollWidth <= innerWidth"))


def test_what_nodes_send_is_shown_as_text(browser, training):
    training.store.name = _HOSTILE
    training.play(1)
    training.note("failure", _HOSTILE, _HOSTILE)
    training.store.take_lines(training.nodes[1], (_HOSTILE,))
    training.play(10, lambda epoch: {_HOSTILE: 1.0, "__proto__": 2.0, "constructor": float("nan")})
    with closing(training.serve()) as dashboard:
        show(browser, dashboard.url)
        assert text(browser, "name") == _HOSTILE
        assert _HOSTILE in text(browser, "events")
        browser.find_element(By.CSS_SELECTOR, "#nodes tbody button").click()
        wait(browser, lambda: _HOSTILE in text(browser, "lines"))
        titles = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#charts h3")]
        assert {_HOSTILE, "__proto__", "constructor"} <= set(titles)
        assert not browser.find_elements(By.CSS_SELECTOR, "img, main script")
        complaints(browser)


def test_a_metric_that_is_nan_is_a_gap_and_is_named(browser, training):
    values = {"loss": float("nan"), "accuracy": 0.5}
    training.play(20, lambda epoch: values)
    with closing(training.serve()) as dashboard:
        show(browser, dashboard.url)
        assert "loss was no number (NaN) from epoch 13 to 14, in 2 reports" in text(browser, "notices")
        assert "loss: NaN" in text(browser, "charts")
        found = browser.execute_script('return charts.get("charts metric loss").plot.data[1].slice(-2)')
        assert found == [None, None]
        complaints(browser)


def test_an_end_keeps_the_last_state(page, training):
    training.play(10)
    training.store.end(failed=False, text="the cluster has ended")
    page.dashboard.close()
    wait(page, lambda: text(page, "connection").startswith("The cluster has ended"))
    assert text(page, "state") == "ended"
    assert len(cells(page)) == 2
    assert cells(page, "#events tbody tr")[0][1] == "■ ended"
    time.sleep(3)
    assert text(page, "connection").startswith("The cluster has ended")


def test_the_failure_of_the_cluster_is_named(page, training):
    training.play(10)
    failure = "worker:1 on 10.0.0.12 failed: it ran out of memory"
    training.store.end(failed=True, text=failure)
    page.dashboard.close()
    wait(page, lambda: text(page, "state") == "failed")
    assert text(page, "notices").startswith(f"The cluster has failed: {failure}")


def test_a_lost_connection_is_shown_and_made_again(browser, training, monkeypatch):
    monkeypatch.setenv("TFOS_DASHBOARD_TOKEN", "a-token-of-sixteen-or-more")
    first = training.serve()
    port = urlsplit(first.url).port
    show(browser, first.url)
    for connection in list(first._servers[0]._connections):  # as if the driver had died
        connection.shutdown(2)
    for server in first._servers:
        server.close()
    wait(browser, lambda: text(browser, "connection").startswith("No connection to the driver since"))
    assert len(cells(browser)) == 2
    training.play(10)
    with closing(training.serve(page_port=port)):
        wait(browser, lambda: text(browser, "connection") == "live")
        assert "epoch\n8" in text(browser, "totals")
    browser.get_log("browser")  # Chromium logs each attempt
    first.close()


def test_a_connection_that_is_silent_is_made_again(page, training, monkeypatch):
    """As after a computer has slept: the browser itself would wait for ever."""
    silent = Event()
    monkeypatch.setattr(page.dashboard._snapshots._closed, "wait", lambda _: silent.wait())
    time.sleep(1.5)  # until the page asks again
    monkeypatch.undo()
    training.play(10)
    assert "epoch\n7" in text(page, "totals")
    page.execute_script("asked -= 60000")
    wait(page, lambda: "epoch\n8" in text(page, "totals"))
    assert text(page, "connection") == "live"
    silent.set()


def test_a_thousand_nodes_are_usable(browser):
    training = with_failure(PlayedTraining(1000, slow=777, gpus=1, begin=time.time() - 63), 30)
    training.nodes[500].state = NodeState.FAILED
    with closing(training.serve()) as dashboard:
        show(browser, dashboard.url)
        assert len(browser.find_elements(By.CSS_SELECTOR, "#strip i")) == 1000
        assert [row[0] for row in cells(browser)][:3] == ["worker:500", "worker:777straggler", "worker:0"]
        assert len(cells(browser)) == 10
        browser.find_element(By.ID, "filter").send_keys("10.0.4.")
        wait(browser, lambda: text(browser, "count").startswith("200 of 1000 nodes"))
        browser.find_element(By.ID, "next").click()
        assert text(browser, "page") == "11 to 20 of 200"
        browser.find_element(By.ID, "filter").clear()
        browser.find_element(By.ID, "filter").send_keys("worker:123" + Keys.ENTER)
        wait(browser, lambda: [row[0] for row in cells(browser)] == ["worker:123"])
        for _ in range(2):
            browser.find_element(By.CSS_SELECTOR, "[data-sort=waiting_for_workers]").click()
        browser.find_element(By.ID, "filter").send_keys(Keys.BACKSPACE * 20)
        wait(browser, lambda: len(cells(browser)) == 10)
        shares = [int(row[9].split()[0]) for row in cells(browser)]
        assert shares == sorted(shares, reverse=True)
        training.play(1)
        drawn = browser.execute_script("const begin = performance.now(); draw(); return performance.now() - begin")
        assert drawn < 500
        browser.find_elements(By.CSS_SELECTOR, "#strip i")[42].click()
        wait(browser, lambda: text(browser, "detail-title").startswith("worker:42 "))
        complaints(browser)


def test_a_page_of_a_day_has_bounded_data(page, training):
    for _ in range(12):
        training.play(600)
        time.sleep(0.3)
    wait(page, lambda: "7,2" in text(page, "totals") or page.execute_script("return model.reports.length") > 600)
    sizes = page.execute_script("return [model.curves.time.length, model.reports.length, charts.size]")
    assert sizes[0] <= 512
    assert sizes[1] <= 2000
    assert sizes[2] < 20


def test_the_stacks_open_in_a_window_of_their_own(page):
    first = page.current_window_handle
    page.find_element(By.ID, "stacks").click()
    wait(page, lambda: len(page.window_handles) == 2)
    (other,) = set(page.window_handles) - {first}
    page.switch_to.window(other)
    try:
        wait(page, lambda: page.find_element(By.TAG_NAME, "body").text.startswith("stacks of"))
    finally:
        page.close()
        page.switch_to.window(first)
    page.dashboard.close()
    wait(page, lambda: "has ended" in text(page, "connection"))
    assert not page.find_element(By.ID, "stacks").is_displayed()


def test_the_report_opens_from_its_file(browser, training, tmp_path):
    save_report(str(tmp_path / "run.html"), partial(report_html, training.store))
    show(browser, f"file://{tmp_path}/run.html")
    assert text(browser, "connection").startswith("Report of ")
    assert len(cells(browser)) == 2
    assert all(count > 10 for count in colors(browser, "#charts canvas"))
    browser.find_element(By.CSS_SELECTOR, "#nodes tbody button").click()
    wait(browser, lambda: "steps more" in text(browser, "lines"))
    assert len(colors(browser, "#detail-charts canvas")) == 5
    assert not browser.find_element(By.ID, "report").is_displayed()
    assert not browser.find_element(By.ID, "stacks").is_displayed()
    complaints(browser)


def test_zooming_one_chart_zooms_all(page):
    from selenium.webdriver import ActionChains

    over = page.find_element(By.CSS_SELECTOR, "#charts .u-over")
    ActionChains(page).move_to_element_with_offset(over, -50, 0).click_and_hold().move_by_offset(
        60, 0
    ).release().perform()
    script = "return [...charts.values()].map(each => each.plot.scales.x.max - each.plot.scales.x.min)"
    wait(page, lambda: all(each < 60 for each in page.execute_script(script)))
    page.find_element(By.ID, "unzoom").click()
    wait(page, lambda: all(each > 100 for each in page.execute_script(script)))
