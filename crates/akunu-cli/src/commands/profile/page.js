"use strict";

// Without this script the page shows the same, but the table cannot be sorted nor the chart enlarged.

const table = document.querySelector("table");
const body = table.tBodies[0];
for (const [column, th] of [...table.tHead.rows[0].cells].entries()) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = th.textContent;
  th.replaceChildren(button);
  button.addEventListener("click", () => {
    const numbers = !th.classList.contains("text");
    const before = th.getAttribute("aria-sort");
    // Numbers begin with the largest.
    const descending = before ? before === "ascending" : numbers;
    const value = (row) => {
      const cell = row.cells[column];
      return numbers ? Number(cell.dataset.value ?? -1) : cell.textContent;
    };
    const compare = numbers ? (a, b) => value(a) - value(b) : (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
    const rows = [...body.rows].sort((a, b) => (descending ? compare(b, a) : compare(a, b)));
    body.replaceChildren(...rows);
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", descending ? "descending" : "ascending");
  });
}

const flame = document.querySelector(".flame");
const frames = [...flame.querySelectorAll("g")];
const width = flame.viewBox.baseVal.width;
const CHARACTER = 7.3;

function show(from, length) {
  for (const frame of frames) {
    const start = Math.max(Number(frame.dataset.from), from);
    const end = Math.min(Number(frame.dataset.from) + Number(frame.dataset.ns), from + length);
    const rect = frame.querySelector("rect");
    const text = frame.querySelector("text");
    const x = ((start - from) / length) * width;
    const w = Math.max(0, ((end - start) / length) * width);
    frame.setAttribute("visibility", end > start ? "visible" : "hidden");
    rect.setAttribute("x", x.toFixed(2));
    rect.setAttribute("width", w.toFixed(2));
    text.setAttribute("x", (x + 4).toFixed(2));
    const names = [frame.dataset.name, frame.dataset.short ?? ""];
    text.textContent = names.find((name) => name.length * CHARACTER + 8 <= w) ?? "";
  }
}

for (const frame of flame.querySelectorAll(".group, .all")) {
  const enlarge = () => show(Number(frame.dataset.from), Math.max(1, Number(frame.dataset.ns)));
  frame.setAttribute("tabindex", "0");
  frame.setAttribute("role", "button");
  frame.addEventListener("click", enlarge);
  frame.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      enlarge();
    }
  });
}
