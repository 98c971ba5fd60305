"""How the tab is laid out."""

from __future__ import annotations

CSS = """
LiveTab {
    height: 1fr;

    #live-choose { height: 1; width: 1fr; }
    #live-choose Press { margin-right: 2; }
    #live-body { height: 1fr; layout: vertical; }
    #live-main, #live-side { height: 1fr; }

    .live-pane {
        border-top: solid $foreground 25%;
        border-title-color: $text-muted;
        border-subtitle-color: $text-disabled;
    }
    .live-pane:focus {
        border-top: solid $primary;
        border-title-color: $text-primary;
        border-title-style: bold;
    }

    &.-slim .live-pane { border-top: none; }
    &.-middle {
        #live-side, #live-pictures { height: 14; }
        &.-small-side #live-side, &.-small-side #live-hand { height: auto; max-height: 14; }
    }

    &.-broad {
        #live-choose { display: none; }
        #live-body { layout: horizontal; }
        #live-main { width: 5fr; margin-right: 2; }
        #live-side { width: 3fr; }
        #live-episodes { height: 1fr; }
        #live-curves { height: 2fr; }
        #live-pictures { height: 1fr; min-height: 12; }
        #live-hand { height: auto; max-height: 10; }
    }
}
"""
