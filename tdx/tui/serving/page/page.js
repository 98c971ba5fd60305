"use strict";

// The line to the app: the same host, port and path as the page, whatever a proxy makes of them.
document.addEventListener("DOMContentLoaded", () => {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  document.getElementById("terminal").dataset.sessionWebsocketUrl = `${scheme}//${location.host}${location.pathname}ws`;
  document.getElementById("again").addEventListener("click", () => location.reload());
});

// Keys go to the app without a click before, as soon as there is something to see.
document.addEventListener("DOMContentLoaded", () => {
  const watcher = new MutationObserver(() => {
    if (document.body.classList.contains("-first-byte")) {
      watcher.disconnect();
      document.querySelector(".xterm-helper-textarea").focus();
    }
  });
  watcher.observe(document.body, { attributeFilter: ["class"] });
});
