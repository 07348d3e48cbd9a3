// Embedded explorers follow the light or dark scheme that the reader chose for the page.
function applyScheme() {
  const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
  for (const frame of document.querySelectorAll(".explorer iframe")) {
    const root = frame.contentDocument?.documentElement;  // null while loading, and for pages opened from disk
    if (!root) continue;
    root.dataset.fedgramTheme = theme;
    for (const explorer of root.querySelectorAll(".fedgram-explorer")) explorer.dataset.theme = theme;
  }
}

for (const frame of document.querySelectorAll(".explorer iframe")) frame.addEventListener("load", applyScheme);
new MutationObserver(applyScheme).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
applyScheme();
