for (const head of document.querySelectorAll("table.sortable th")) {
  head.classList.add("sorts");
  head.tabIndex = 0;
  const sort = () => {
    const body = head.closest("table").tBodies[0], at = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending" ||
      (!head.hasAttribute("aria-sort") && head.classList.contains("n"));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => {
      const cell = row.cells[at];
      return cell && cell.dataset.sort !== undefined ? Number(cell.dataset.sort) : cell ? cell.textContent.trim() : "";
    };
    const rows = [...body.rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))));
    if (down) rows.reverse();
    body.append(...rows.map(([, row]) => row));
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
}
for (const input of document.querySelectorAll("input[data-table]")) {
  input.closest("p").hidden = false;
  const count = document.querySelector(`[data-count="${input.dataset.table}"]`), all = count.textContent;
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    let shown = 0;
    for (const row of document.getElementById(input.dataset.table).tBodies[0].rows) {
      row.hidden = !row.dataset.name.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    count.textContent = wanted ? `${shown.toLocaleString("en")} of ${all}` : all;
    if (input.dataset.table === "topic-table") {
      for (const part of document.querySelectorAll("#partitions details")) {
        part.hidden = !part.dataset.name.toLowerCase().includes(wanted);
      }
    }
  });
}
const opened = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
};
window.addEventListener("hashchange", opened);
opened();
const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const set = document.documentElement.dataset.theme;
  const dark = set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
});
