// Draws the page's Mermaid diagrams, and again when the reader changes between light and dark.
document.addEventListener("DOMContentLoaded", () => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const drawings = [...document.querySelectorAll("pre.mermaid")].map((node) => [node, node.textContent]);
  const isDark = () => {
    const theme = document.body.dataset.theme;
    return theme === "dark" || (theme !== "light" && system.matches);
  };
  let drawn = null;
  async function draw() {
    if (drawn === isDark()) return;
    drawn = isDark();
    mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: drawn ? "dark" : "neutral" });
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
