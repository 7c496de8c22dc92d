/* What the theme leaves unreachable by keyboard or without a name: boxes that scroll, copy buttons. */
const SCROLL = ".md-typeset__scrollwrap, .md-typeset pre > code, :has(> math[display=block])";
const complete = () => {
  for (const box of document.querySelectorAll(SCROLL))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  for (const corner of document.querySelectorAll("th:empty"))
    corner.replaceWith(document.createElement("td"));
  document.querySelectorAll(".md-code__nav").forEach((bar, i) => {
    bar.setAttribute("aria-label", `Code block ${i + 1}`);
  });
};
/* Two names of one spelling in a list of contents. */
const number = () => {
  const seen = {};
  for (const list of document.querySelectorAll(".md-nav--secondary .md-nav")) {
    const name = list.ariaLabel;
    seen[name] = (seen[name] ?? 0) + 1;
    if (seen[name] > 1) list.ariaLabel = `${name} (${seen[name]})`;
  }
};
document.addEventListener("DOMContentLoaded", () => {
  number();
  complete();
  new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
});
addEventListener("resize", complete);
