"""Pages as a person sees them: Debian's Chromium, headless, driven through Selenium.

Every wait is for a condition, so a step is made of what it does and what must show afterwards.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM = "/usr/bin/chromium"
CHROMEDRIVER = "/usr/bin/chromedriver"

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

Step = Callable[[WebDriver], None]
"""Something done on an open page."""


def why_no_browser() -> str | None:
    """Why no page can be looked at here, or `None` when one can."""
    missing = [path for path in (CHROMIUM, CHROMEDRIVER) if not shutil.which(path)]
    return f"not installed: {', '.join(missing)}" if missing else None


@contextlib.contextmanager
def browser(*, size: tuple[int, int] = (1400, 1000)) -> Iterator[WebDriver]:
    """A Chromium with a fresh profile; `size` is the page's width and height in pixels."""
    with tempfile.TemporaryDirectory(prefix="hf-chromium-", ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"):
            options.add_argument(flag)
        # With the driver's path given, Selenium looks for none on the network.
        driver = webdriver.Chrome(options=options, service=Service(executable_path=CHROMEDRIVER))
        try:
            # The window's size counts the browser's own bars, which no screenshot shows.
            metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            yield driver
        finally:
            driver.quit()


def screenshot(
    url: str,
    png_path: Path,
    *,
    wait_for_text: Sequence[str],
    timeout_seconds: float = 60.0,
    size: tuple[int, int] = (1400, 1000),
    script_steps: Sequence[Step] = (),
) -> str:
    """Open `url`, take the steps, wait until every text shows, save a PNG; gives the page's text.

    Raises:
        AssertionError: a text did not show in time; the message has what the page showed instead,
            and the PNG is saved all the same.
    """
    with browser(size=size) as driver:
        driver.get(url)
        try:
            for step in script_steps:
                step(driver)
            see(*wait_for_text, timeout_seconds=timeout_seconds)(driver)
            come_to_rest()(driver)
        finally:
            png_path.parent.mkdir(parents=True, exist_ok=True)
            driver.save_screenshot(str(png_path))
        return page_text(driver)


def page_text(driver: WebDriver) -> str:
    """The text that the page shows, without what is hidden; what an input holds is not in it."""
    # One script call: the elements may be replaced between two.
    text = driver.execute_script("return document.body ? document.body.innerText : ''")
    return str(text)


def see(*texts: str, timeout_seconds: float = 30.0) -> Step:
    """A step that waits until all of `texts` show at the same time."""

    def step(driver: WebDriver) -> None:
        def shown(_: WebDriver) -> bool:
            page = page_text(driver)
            return all(text in page for text in texts)

        try:
            WebDriverWait(driver, timeout_seconds, poll_frequency=0.1).until(shown)
        except TimeoutException:
            page = page_text(driver)
            missing = [text for text in texts if text not in page]
            raise AssertionError(
                f"{missing} not on {driver.current_url} within {timeout_seconds:g} s:\n{page}"
            ) from None

    return step


def come_to_rest(*, timeout_seconds: float = 5.0) -> Step:
    """A step that waits until the picture stays the same for a moment, or the time is over.

    The timeline of a flow run is a canvas: no text tells that it is drawn. That of a running run
    never rests.
    """

    def step(driver: WebDriver) -> None:
        last = b""

        def resting(_: WebDriver) -> bool:
            nonlocal last
            before, last = last, driver.get_screenshot_as_png()
            return before == last

        with contextlib.suppress(TimeoutException):
            WebDriverWait(driver, timeout_seconds, poll_frequency=0.4).until(resting)

    return step


def click_text(text: str, *, timeout_seconds: float = 30.0) -> Step:
    """A step that clicks the tab, button or link that has just this text, once it is there."""
    quoted = _xpath_string(text)
    own = f"normalize-space(.)={quoted}"
    clickable = "self::button or self::a or @role='tab' or @role='button' or @role='menuitem'"
    preferred = f"//*[({clickable}) and {own}]"
    anything = f"//*[{own} and not(*[{own}])]"
    return _click((preferred, anything), what=repr(text), timeout_seconds=timeout_seconds)


def click_css(selector: str, *, timeout_seconds: float = 30.0) -> Step:
    """A step that clicks the first visible element of a CSS selector, once it is there."""
    return _click((), css=selector, what=selector, timeout_seconds=timeout_seconds)


def _click(
    xpaths: Sequence[str], *, what: str, timeout_seconds: float, css: str | None = None
) -> Step:
    def step(driver: WebDriver) -> None:
        def clicked(_: WebDriver) -> bool:
            found: list[WebElement] = driver.find_elements(By.CSS_SELECTOR, css) if css else []
            for xpath in xpaths:
                found += driver.find_elements(By.XPATH, xpath)
            for element in found:
                # A page that is still being drawn replaces elements, or covers them for a moment.
                with contextlib.suppress(WebDriverException):
                    if element.is_displayed():
                        element.click()
                        return True
            return False

        try:
            WebDriverWait(driver, timeout_seconds, poll_frequency=0.1).until(clicked)
        except TimeoutException:
            raise AssertionError(
                f"nothing to click for {what} on {driver.current_url}:\n{page_text(driver)}"
            ) from None

    return step


def _xpath_string(text: str) -> str:
    if '"' not in text:
        return f'"{text}"'
    parts = ", '\"', ".join(f'"{part}"' for part in text.split('"'))
    return f"concat({parts})"
