"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // Sorting: a click or Enter on a header's button; a second one turns the order; nothing always comes last.
  const value = (row, column) => row.cells[column].dataset.sort ?? "";
  const compared = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  };
  for (const button of all("th button")) {
    button.addEventListener("click", () => {
      const header = button.closest("th");
      const table = header.closest("table");
      const down = header.getAttribute("aria-sort") === "ascending";
      for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      table.classList.add("sorted");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [x, y] = [value(a, header.cellIndex), value(b, header.cellIndex)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return (down ? -1 : 1) * compared(x, y);
      });
      table.tBodies[0].append(...rows);
    });
  }

  // What folds: all at once, where a link leads, and for the printer.
  for (const button of all("[data-fold]")) {
    button.addEventListener("click", () => {
      for (const part of all("details", button.closest("section"))) part.open = button.dataset.fold === "open";
    });
  }
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let part = target; part; part = part.parentElement) if (part.localName === "details") part.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open]):not(.long)");
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of closed) part.open = false;
  });
})();
