for (const head of document.querySelectorAll("table.sortable th")) {
  head.classList.add("sorts");
  head.tabIndex = 0;
  const sort = () => {
    const table = head.closest("table"), at = head.cellIndex;
    const body = table.classList.contains("grouped") ? table : table.tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending" ||
      (!head.hasAttribute("aria-sort") && head.classList.contains("n"));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => {
      const cell = (row.rows ? row.rows[0] : row).cells[at];
      return cell && cell.dataset.sort !== undefined ? Number(cell.dataset.sort) : cell ? cell.textContent.trim() : "";
    };
    const rows = [...(body === table ? table.tBodies : body.rows)].map((row) => [value(row), row]);
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
    const table = document.getElementById(input.dataset.table);
    for (const row of table.classList.contains("grouped") ? table.tBodies : table.tBodies[0].rows) {
      row.hidden = !row.dataset.name.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    count.textContent = wanted ? `${shown.toLocaleString("en")} of ${all}` : all;
  });
}
const opened = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const opener = target && target.querySelector("details.opener");
  if (opener) opener.open = true;
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
