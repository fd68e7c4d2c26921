// Draws the page's Mermaid diagrams, and again when the reader changes between light and dark.
document.addEventListener("DOMContentLoaded", () => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const drawings = [...document.querySelectorAll("pre.mermaid")].map((node) => [node, node.textContent]);
  const isDark = () => {
    const theme = document.body.dataset.theme;
    return theme === "dark" || (theme !== "light" && system.matches);
  };
  // The colours of the other drawings, which site.css sets by the theme of the page.
  const colours = (darkMode) => {
    const style = getComputedStyle(document.body);
    const of = (name) => style.getPropertyValue(name).trim();
    return {
      darkMode,
      fontSize: "14px",
      background: of("--color-background-primary"),
      primaryColor: of("--d-node"),
      primaryBorderColor: of("--d-node-line"),
      primaryTextColor: of("--d-ink"),
      secondaryColor: of("--d-plain"),
      tertiaryColor: of("--d-host"),
      textColor: of("--d-ink"),
      lineColor: of("--d-muted"),
      clusterBkg: of("--d-host"),
      clusterBorder: of("--d-host-line"),
      edgeLabelBackground: of("--color-background-primary"),
      actorBkg: of("--d-node"),
      actorBorder: of("--d-node-line"),
      actorTextColor: of("--d-ink"),
      signalColor: of("--d-muted"),
      signalTextColor: of("--d-ink"),
      noteBkgColor: of("--d-spark"),
      noteBorderColor: of("--d-spark-line"),
      noteTextColor: of("--d-ink"),
    };
  };
  let drawn = null;
  async function draw() {
    if (drawn === isDark()) return;
    drawn = isDark();
    mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: "base", themeVariables: colours(drawn) });
    for (const [node, text] of drawings) {
      node.removeAttribute("data-processed");
      node.textContent = text.replaceAll("&lt;br/&gt;", "<br/>");
    }
    await mermaid.run({ nodes: drawings.map(([node]) => node) });
  }
  new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  system.addEventListener("change", draw);
  draw();
});
