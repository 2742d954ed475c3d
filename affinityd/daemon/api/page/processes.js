// The table of processes: alike processes share a row, and the reader filters and sorts the rows.

import { amount, button, count, made, printable, refill, remedied } from "/elements.js";

const ROWS = 40; // shown before the reader asks for more
const MOST_PIDS = 200; // in a row's details

const section = document.getElementById("processes");
const [filter, ofGpus] = [section.querySelector("[type=search]"), section.querySelector("select")];
const opened = new Set(); // keys of the rows whose details are shown
let [processes, sorted, isUp, isAll] = [[], "GPU", true, false];

export const isOfGpu = (process, gpu) =>
  [process, ...process.gpus_beside].some((it) => it.vendor === gpu.vendor && it.gpu === gpu.index);

export function jobOf(process) {
  if (process.pod) return process.pod.name;
  if (process.job) return `${process.job.scheduler} ${process.job.id}`;
  return process.container ? `container ${process.container.slice(0, 12)}` : "";
}

export const userOf = (process) => process.user ?? String(process.uid ?? "");

// Shows the processes of a scan; null: the reader may see none.
export function showProcesses(those, gpus) {
  processes = those ?? [];
  section.hidden = !processes.length;
  if (ofGpus.options.length !== gpus.length + 1) {
    const all = new Option("all", "");
    ofGpus.replaceChildren(all, ...gpus.map((it) => new Option(`GPU ${it.index}`, `${it.vendor}:${it.index}`)));
  }
  show();
}

export function showGpu(name) {
  [ofGpus.value, filter.value] = [name, ""];
  show();
  section.scrollIntoView({ block: "start" });
}

const sum = (group, number) => group.reduce((total, it) => total + number(it), 0);
const waited = (group) => sum(group, ({ waits }) => (waits ? waits.waited / waits.seconds : 0));
const farMemory = (group) => sum(group, (it) => it.host_memory?.placed_bytes.remote ?? 0);
// An unpinned process may run anywhere, and may be near.
export const isFar = (process) => Boolean(process.cause) && process.cause !== "unpinned";
const gpusOf = ([first]) => [first.gpu, ...first.gpus_beside.map((it) => it.gpu)].join(",");

// Column → its text in a row of alike processes, and the key by which rows are sorted.
const COLUMNS = {
  GPU: [gpusOf, ([first]) => first.gpu],
  PID: [([first]) => first.pid, ([first]) => first.pid],
  process: [(group) => `${group[0].name}${group.length > 1 ? ` +${group.length - 1} alike` : ""}`, ([first]) => first.name],
  job: [([first]) => jobOf(first), ([first]) => jobOf(first)],
  user: [([first]) => userOf(first), ([first]) => userOf(first)],
  placement: [
    ([first]) => [first.placement, first.cause, first.orphan && "orphan"].filter(Boolean).join(", "),
    ([first]) => (first.cause ? 0 : first.orphan ? 1 : 2),
  ],
  waits: [waitsOf, (group) => -waited(group)],
  "far memory": [(group) => (farMemory(group) ? amount(farMemory(group)) : ""), (group) => -farMemory(group)],
  "may run on": [([first]) => first.masks, null],
};

// Seconds that threads waited in a second, and what explains the longest waits; ?: short-lived threads.
function waitsOf(group) {
  if (group.some(({ waits }) => waits && waits.waited === null)) return "?";
  if (waited(group) < 0.01) return "";
  const longest = group.reduce((most, it) => ((it.waits?.waited ?? 0) > (most.waits?.waited ?? 0) ? it : most));
  return `${waited(group).toFixed(2)} ${longest.waits.cause ?? ""}`.trim();
}

function show() {
  const wanted = filter.value.toLowerCase().split(/\s+/);
  const groups = new Map();
  for (const process of processes) {
    const gpus = [process, ...process.gpus_beside].map((it) => `${it.vendor}:${it.gpu}`);
    const words = [process.pid, process.name, jobOf(process), userOf(process), process.placement, process.cause, process.orphan && "orphan"];
    const text = words.join(" ").toLowerCase();
    if ((ofGpus.value && !gpus.includes(ofGpus.value)) || !wanted.every((it) => text.includes(it))) continue;
    const key = JSON.stringify([gpus, process.name, jobOf(process), process.uid, process.placement, process.cause, process.orphan]);
    if (!groups.get(key)?.push(process)) groups.set(key, [process]);
  }
  const order = COLUMNS[sorted][1];
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  const rows = [...groups].sort(([, a], [, b]) => (isUp ? 1 : -1) * compare(order(a), order(b)));
  const shown = isAll ? rows : rows.slice(0, ROWS);
  const table = section.querySelector("table");
  refill(table.tHead, head());
  refill(table.tBodies[0], ...shown.flatMap(([key, group]) => rowsOf(key, group)));
  const number = sum(rows, ([, group]) => group.length);
  section.querySelector(".number").textContent = `${count(number, "process")} in ${count(rows.length, "row")}`;
  const more = section.querySelector(".more");
  more.hidden = shown.length === rows.length;
  more.textContent = `show all ${rows.length} rows`;
}

function head() {
  const row = made("tr");
  for (const [name, [, order]] of Object.entries(COLUMNS)) {
    const cell = made("th", order ? "" : name);
    cell.scope = "col";
    if (order) {
      const isIt = name === sorted;
      const sort = button(`${name}${isIt ? (isUp ? " ▲" : " ▼") : ""}`, `sort by ${name}`, () => {
        [sorted, isUp] = [name, !isIt || !isUp];
        show();
      });
      sort.dataset.focus = name;
      if (isIt) cell.ariaSort = isUp ? "ascending" : "descending";
      cell.append(sort);
    }
    row.append(cell);
  }
  const details = made("th", "details");
  details.scope = "col";
  row.append(details);
  return row;
}

// The row of alike processes, and one below it with their remedies, which a button shows.
function rowsOf(key, group) {
  const [first] = group;
  const [row, below, why] = [made("tr"), made("tr"), made("td")];
  for (const [name, [text]] of Object.entries(COLUMNS)) {
    const cell = made("td", printable(text(group)));
    cell.dataset.label = name;
    if (name === "placement" && (isFar(first) || first.orphan)) cell.className = "bad";
    row.append(cell);
  }
  const toggle = button("show", `details of ${printable(first.name)}, process ${first.pid}`, () => open(below.hidden));
  const open = (isOpen) => {
    below.hidden = !isOpen;
    toggle.setAttribute("aria-expanded", String(isOpen));
    toggle.textContent = isOpen ? "hide" : "show";
    opened[isOpen ? "add" : "delete"](key);
    if (isOpen) why.replaceChildren(...details(group));
  };
  toggle.dataset.focus = key;
  row.insertCell().append(toggle);
  why.colSpan = row.cells.length;
  below.append(why);
  open(opened.has(key));
  return [row, below];
}

function* details(group) {
  const texts = (text) => [...new Set(group.map(text).filter(Boolean))];
  for (const orphan of texts((it) => it.orphan)) yield made("p", `orphan: ${printable(orphan)}`);
  const remedies = texts((it) => it.remedy).concat(texts((it) => it.waits?.remedy), texts((it) => it.host_memory?.remedy));
  for (const remedy of remedies.slice(0, 8)) yield remedied(remedy);
  const pids = group.map((it) => it.pid);
  const more = pids.length > MOST_PIDS ? ` and ${pids.length - MOST_PIDS} more` : "";
  yield made("p", `${pids.length === 1 ? "PID" : "PIDs"} ${pids.slice(0, MOST_PIDS).join(", ")}${more}`);
}

filter.addEventListener("input", show);
ofGpus.addEventListener("change", show);
section.querySelector(".more").addEventListener("click", () => {
  isAll = true;
  show();
});
