"""The keys of the profile tab, and what its help says."""

from __future__ import annotations

from textual.binding import Binding

from tdx.tui.searching import search_keys

PROFILE_KEYS = (
    *search_keys("profile"),
    Binding("r", "measure", "measure", id="profile.measure"),
    Binding("c", "cancel", "cancel", id="profile.cancel", show=False),
    Binding("s", "sort", "sort", id="profile.sort"),
    Binding("i", "invert", "invert", id="profile.invert", show=False),
    Binding("m", "mode", "mode", id="profile.mode"),
    Binding("n", "settings", "settings", id="profile.settings", show=False),
    Binding("o", "extra('operators')", "operators", id="profile.operators"),
    Binding("v", "advise", "advice", id="profile.advice"),
    Binding("w", "extra('marginal')", "without each", id="profile.marginal", show=False),
    Binding("M", "extra('memory')", "memory", id="profile.memory", show=False),
    Binding("b", "base", "compare with this", id="profile.base", show=False),
    Binding("left_square_bracket", "run(-1)", "earlier", id="profile.earlier", key_display="["),
    Binding("right_square_bracket", "run(1)", "later", id="profile.later", key_display="]"),
)
HELP = """## Profile

`r` measures the chain in a process of its own, while everything else goes on; `c` cancels it, and
what was measured until then is there. `m` chooses how the chain runs: `planned` as rollouts do by
default, `eager` step by step, `compiled` with neighbouring stages compiled, or some side by side.
`s` sorts by the next column, `i` the other way round; `/` goes to a part by its name.

More is measured, in passes of its own, where it is switched on: `o` which of torch's operators run
in each part, `M` what it allocates, `w` what the chain takes without each of its stages. `v` tries
what may make the chain cheaper, and makes the edit that you choose.

Edit the chain and measure again: the column `change` says what each part takes more or less
than in the run before; `≈` is within the noise. `[` and `]` go through the runs, `b` lets others be
compared with the one that is shown."""
