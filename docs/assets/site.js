/* What the theme leaves unreachable by keyboard or without a name: boxes that scroll, copy buttons. */
const complete = () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  for (const corner of document.querySelectorAll("th:empty"))
    corner.replaceWith(document.createElement("td"));
  document.querySelectorAll(".md-code__nav").forEach((bar, i) => {
    bar.setAttribute("aria-label", `Code block ${i + 1}`);
  });
};
document.addEventListener("DOMContentLoaded", () => {
  complete();
  new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
});
addEventListener("resize", complete);
