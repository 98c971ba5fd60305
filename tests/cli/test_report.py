"""``tdx report``: a self-contained HTML page."""

from __future__ import annotations

import base64
import io
import re
import shlex
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
import torch

from tdx.cli.charts import episode_plot, reward_plot
from tdx.inspection.pipeline_report import (
    EpisodeSummary,
    PipelineReport,
    RewardPlot,
    build_report,
    encode_png,
    is_image,
    to_png,
)
from tdx.pipeline import EnvConfig, Pipeline
from tdx.stacks.building import build_stack
from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

from tests.programs import BROWSERS, require_program

CHAIN = ("ToTensorImage", "GrayScale", "Resize(32, 32)", "CatFrames(4, dim=-3)", "RewardSum")
_MEASURE = """<script>
const all = [document.documentElement, ...document.querySelectorAll("body *")];
const wide = all.filter(each => each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0);
const scrolling = wide.filter(each => getComputedStyle(each).overflowX !== "visible");
document.body.dataset.width = document.documentElement.scrollWidth;
document.body.dataset.scrolling = scrolling.length;
</script>"""
LOADS = {"src", "href", "data", "action", "poster", "srcset", "background", "xlink:href"}


def decode_png(data: bytes) -> torch.Tensor:
    """Return the colors of an image, ``[H, W, 3]``."""
    import pygame

    surface = pygame.image.load(io.BytesIO(data), "image.png")
    return torch.from_numpy(pygame.surfarray.array3d(surface)).permute(1, 0, 2)


class Page(HTMLParser):
    """Parser that collects the resources, tags and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in LOADS]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tdx.cli.process import run

    target = tmp_path_factory.mktemp("report") / "report.html"
    stages = [word for stage in CHAIN for word in ("--t", stage)]
    env = ("--env", "CartPole-v1", "--from-pixels", "--num-envs", "2")
    assert run(["report", *env, *stages, "-o", str(target), "--steps", "12"]) == 0
    return target.read_text()


@exhaustive
def test_page_loads_no_external_resources(html: str) -> None:
    page = Page(html)
    assert page.loads
    assert all(load.startswith(("data:", "#")) for load in page.loads)
    assert not {"script", "iframe", "object", "embed", "base"} & {*page.tags}
    assert "default-src 'none'" in html
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/)", html)


@exhaustive
def test_sections_have_anchors_in_the_table_of_contents(html: str) -> None:
    page = Page(html)
    contents = html[html.index("<nav") : html.index("</nav>")]
    titles = (
        *("Findings", "Plan and cost", "Specs", "Stages", "Lineage", "Frames"),
        *("Rewards and episodes", "Pipeline"),
    )
    for title in titles:
        name = title.lower().replace(" ", "-")
        assert f'<h2 id="{name}"><a href="#{name}">{title}</a>' in html
        assert f'<a href="#{name}">{title}</a>' in contents
    anchors = re.findall(r'href="#([^"]+)"', html)
    assert {*anchors} <= {*re.findall(r' id="([^"]+)"', html)}
    assert page.tags.count("svg") == 3
    assert page.tags.count("img") == 8
    assert "pixels@4" in page.text
    assert "episode_reward@1" in page.text


def test_title_names_the_env_and_stages(html: str) -> None:
    title = "CartPole-v1 with ToTensorImage, GrayScale, Resize and 2 more"
    assert f"<title>{title} – tdx</title>" in html
    assert f"<h1>{title}</h1>" in html


def test_chain_marks_each_kind_of_change(tdx: Tdx) -> None:
    stages = (
        "StepCounter(max_steps=2)",
        'RenameTransform(["observation"], ["angle"])',
        'ExcludeTransform("reward")',
    )
    words = [word for stage in stages for word in ("-t", stage)]
    html = tdx("report", "Pendulum-v1", *words, "-o", "-", "--steps", "1").out
    chain = html[html.index("<svg") : html.index("</svg>")]
    for style, text in (
        ("added", "+ step_count  [1]  int64"),
        ("", "= truncated   [1]  bool"),
        ("changed", "→ angle (from observation)  [3]  float32"),
        ("gone", "- reward"),
    ):
        kind = f' class="{style}"' if style else ""
        assert re.search(rf"<text [^>]*\d\"{kind}>{re.escape(text)}", chain), text


def test_cost_section_has_plan_and_cost_of_each_stage(html: str) -> None:
    text = Page(html[html.index('id="plan-and-cost"') : html.index('id="specs"')]).text
    assert "3 × 12 steps with random actions" in text
    for index, stage in enumerate(CHAIN):
        name = stage.split("(")[0]
        assert re.search(rf"{index} {name}\s*(in each step|deferred|fused)", text), text
    assert re.search(r"whole step\s*[\d.,]+\s*100.0%", text)


def test_printed_command_reproduces_the_report(tdx: Tdx) -> None:
    arguments = ("report", "Pendulum-v1", "-t", "StepCounter(max_steps=3)", "--format", "md")
    first = tdx(*arguments, "--steps", "4", "-o", "-").out
    command = first[first.index("```sh") :].splitlines()[1]
    program, *words = shlex.split(command)
    assert program == "tdx"
    assert words[:5] == ["report", "Pendulum-v1", "-t", "StepCounter(max_steps=3)", "--seed"]
    again = tdx(*words).out
    # Measured costs differ between runs.
    assert again.partition("## Specs")[2] == first.partition("## Specs")[2] != ""


def test_report_as_svg_and_markdown(tdx: Tdx, tmp_path: Path) -> None:
    image, text = tmp_path / "chain.svg", tmp_path / "report.md"
    target = ("report", "Pendulum-v1", "-t", "RewardSum", "--steps", "2")
    assert tdx(*target, "-o", str(image)).code == tdx(*target, "-o", str(text)).code == 0
    root = ElementTree.fromstring(image.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    chain = tdx("inspect", "chain", "Pendulum-v1", "-t", "RewardSum", "--format", "svg")
    assert image.read_text() == chain.out
    shown = text.read_text()
    assert shown.startswith("# Pendulum-v1 with RewardSum\n")
    assert re.findall("^## (.*)$", shown, re.MULTILINE) == [
        *("Findings", "Plan and cost", "Specs", "Stages", "Lineage"),
        *("Rewards and episodes", "Pipeline"),
    ]
    wrong = tdx(*target, "-o", "-", "--format", "pdf")
    assert (wrong.code, wrong.out) == (2, "")
    assert "one of html, md, svg" in wrong.err


def test_frames_show_the_images_of_the_rollout(html: str) -> None:
    frames = [
        decode_png(base64.b64decode(data))
        for data in re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    ]
    shapes = [tuple(frame.shape) for frame in frames]
    assert shapes[:4] == [(400, 600, 3)] * 4
    assert shapes[-1] == (32, 4 * 32 + 3 * 2, 3)
    grey = frames[3]
    assert torch.equal(grey, grey[..., :1].expand_as(grey))
    assert not torch.equal(frames[2], grey)
    assert torch.equal(frames[0], frames[1])


@pytest.mark.programs
@exhaustive
def test_page_in_a_browser(html: str, tmp_path: Path) -> None:
    """Check that the page has no errors and does not scroll horizontally at 1,200 px."""
    browser = require_program(*BROWSERS)
    # The security policy of the page forbids scripts: measure a copy without it.
    measured = re.sub(r"<meta http-equiv[^>]*>", "", html).replace("<details", "<details open")
    (tmp_path / "report.html").write_text(measured.replace("</body>", f"{_MEASURE}</body>"))
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"),
            (tmp_path / "report.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "Lineage" in Page(done.stdout).text
    assert "CONSOLE" not in done.stderr
    found = re.search(r'data-width="(\d+)" data-scrolling="(\d+)"', done.stdout)
    assert found is not None
    assert int(found[1]) <= 1200
    assert int(found[2]) == 0


def report_of(*stages: str, env: EnvConfig | None = None, steps: int = 3) -> PipelineReport:
    pipeline = Pipeline.of(env or EnvConfig("Pendulum-v1"), *stages)
    built = build_stack(pipeline)
    try:
        return build_report(built, pipeline, "<pendulum> & co", steps=steps)
    finally:
        built.close()


def test_rollout_summary_has_episodes_and_rewards() -> None:
    rollout = report_of("StepCounter(max_steps=2)", "RewardClipping(-0.0, 1.0)", steps=5).rollout
    assert [(each.start, each.steps, each.ended) for each in rollout.episodes] == [
        (0, 2, "truncated"),
        (2, 2, "truncated"),
        (4, 2, "truncated"),
    ]
    (curve,) = rollout.plots
    assert (curve.key, len(curve.values)) == ("reward", 6)
    assert rollout.images == ()
    assert report_of("StepCounter", steps=4).rollout == report_of("StepCounter", steps=4).rollout


def test_episode_of_each_env_in_a_batch_is_finished() -> None:
    env = EnvConfig("CartPole-v1", num_envs=3)
    rollout = report_of("InitTracker", env=env, steps=5).rollout
    last = {each.env: each.start + each.steps for each in rollout.episodes}
    assert {each.ended for each in rollout.episodes} == {"terminated"}
    assert all(end >= 5 for end in last.values())
    assert len({*last.values()}) > 1
    assert [len(plot.values) for plot in rollout.plots] == [last[env] for env in range(3)]


def test_endless_episode_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdx.inspection.pipeline_report.MAX_EXTRA_STEPS", 6)
    (episode,) = report_of("InitTracker", steps=4).rollout.episodes
    assert (episode.steps, episode.ended) == (10, "cut")


def test_page_without_rewards_or_without_a_chain(tdx: Tdx) -> None:
    bare = tdx("report", "--env", "Pendulum-v1", "-o", "-", "--steps", "1")
    assert (bare.code, bare.err) == (0, "")
    assert "The chain has no stages." in bare.out
    silent = tdx(
        *("report", "--env", "Pendulum-v1", "--t", 'ExcludeTransform("reward")'),
        *("-o", "-", "--steps", "2"),
    )
    assert silent.code == 0
    assert "returns; blue" not in silent.out


def test_names_are_escaped(tdx: Tdx, tmp_path: Path) -> None:
    file = tmp_path / "<b>.yaml"
    file.write_text("version: 1\nenv: Pendulum-v1\ntransforms: [RewardSum]\n")
    shown = tdx("report", str(file), "-o", "-", "--steps", "2").out
    assert "<b>.yaml" not in shown
    assert shown.count("&lt;b&gt;.yaml") == 2
    assert "&lt;b&gt;.yaml" in shown


def test_plots_of_one_value_and_of_no_values() -> None:
    assert "<circle" in reward_plot([RewardPlot("reward", 0, (1.0,))])
    assert reward_plot([RewardPlot("reward", 0, (float("nan"),))]) == ""
    assert episode_plot([EpisodeSummary(0, 0, 1, None, "cut")]) == ""
    assert episode_plot([EpisodeSummary(0, 0, 1, -3.0, "cut")]).count("<rect") == 1


def test_encoded_png_has_the_same_pixels() -> None:
    pixels = torch.randint(0, 256, (5, 7, 3), dtype=torch.uint8)
    data = encode_png(pixels.numpy().tobytes(), 7, 5)
    assert torch.equal(decode_png(data), pixels)


def test_images_are_detected_by_shape_and_dtype() -> None:
    assert is_image(torch.zeros(2, 84, 84, 3, dtype=torch.uint8), 1)
    assert is_image(torch.zeros(4, 84, 84), 0)
    assert not is_image(torch.zeros(7, 7, 3), 0)
    assert not is_image(torch.zeros(84, 84), 0)
    assert not is_image("text", 0)


def test_values_outside_0_to_1_are_normalized() -> None:
    ramp = torch.linspace(-3, 5, 20 * 20).reshape(1, 20, 20)
    decoded = decode_png(to_png(ramp, 0))
    assert (int(decoded.min()), int(decoded.max())) == (0, 255)


def test_existing_file_needs_force(tdx: Tdx, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("mine")
    arguments = ("report", "--env", "Pendulum-v1", "-o", str(target), "--steps", "1")
    refused = tdx(*arguments)
    assert (refused.code, target.read_text()) == (2, "mine")
    assert tdx(*arguments, "--force").err == f"wrote {target}\n"
    assert target.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no env is given"),
        (("missing.yaml",), "cannot read missing.yaml"),
        (("a.yaml", "--pipeline", "b.yaml"), "cannot be combined"),
        (("--env", "Pendulum-v1", "--steps", "0"), "--steps must be an integer"),
    ],
)
def test_usage_errors(tdx: Tdx, arguments: tuple[str, ...], message: str) -> None:
    outcome = tdx("report", *arguments, "-o", "-")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
