// The processes of the last scan: on the pictures, and as a table.

import { parseList } from "/picture.js";

const FAR = new Set(["mixed", "remote", "unpinned"]);
const SECONDS = 5;
const LETTERS = 11; // in a GPU's box

const section = document.getElementById("running");
let timer;

// Asks for the scan now and every few seconds, or no more; `pictures` returns those to show it on.
export function watch(isOn, pictures) {
  if (section.hidden !== isOn) return;
  section.hidden = !isOn;
  if (isOn) return look(pictures);
  clearTimeout(timer);
  for (const picture of pictures()) picture.running(new Map(), new Map());
}

async function look(pictures) {
  if (!document.hidden) {
    const answer = await asked();
    if (section.hidden) return; // meanwhile
    answer.gpus ? show(answer, pictures()) : refuse(answer.detail, pictures());
  }
  clearTimeout(timer);
  timer = setTimeout(look, SECONDS * 1000, pictures);
}

async function asked() {
  try {
    return await (await fetch("/audit")).json();
  } catch {
    return { detail: "The daemon does not answer." };
  }
}

// Shows no processes: those of an earlier scan may have ended.
function refuse(text, pictures) {
  for (const picture of pictures) picture.running(new Map(), new Map());
  fill([], []);
  for (const id of ["see_more", "scanned"]) document.getElementById(id).hidden = true;
  say(text);
}

function say(text) {
  const line = section.querySelector(".answer");
  if (line.textContent !== text) line.textContent = text; // or a screen reader would read it again
}

function show(audit, pictures) {
  const processes = audit.processes ?? [];
  const cpus = whereTheyRun(audit.gpus, processes);
  const gpus = new Map(audit.gpus.map((gpu) => [`${gpu.vendor}:${gpu.index}`, ofGpu(gpu, processes)]));
  for (const picture of pictures) picture.running(cpus, gpus);
  audit.processes ? tableOfProcesses(processes) : tableOfGpus(audit.gpus);
  const seen = { all: "all processes", own: "your processes", counts: "counts only: over TCP no process is named" };
  const none = audit.processes && !processes.length ? ": none uses a GPU" : "";
  say([`${seen[audit.sees]}${none}`, ...audit.notices].join("; "));
  document.getElementById("see_more").hidden = audit.sees !== "counts";
  const scanned = document.getElementById("scanned");
  scanned.hidden = false;
  scanned.querySelector("time").textContent = new Date(audit.time).toLocaleTimeString();
}

// Each CPU that threads may run on, and whether one of them is far from its GPU there. Of an unpinned
// thread it is the CPU on which the thread ran last.
function whereTheyRun(gpus, processes) {
  const near = new Map(gpus.map((gpu) => [`${gpu.vendor}:${gpu.index}`, parseList(gpu.near)]));
  const cpus = new Map();
  for (const process of processes) {
    const own = [process, ...process.gpus_beside].flatMap((it) => near.get(`${it.vendor}:${it.gpu}`) ?? []);
    const places = new Map();
    for (const { cpulist, last_cpu, placement, pinned_itself } of process.threads) {
      const isFar = FAR.has(placement) && !pinned_itself && !process.daemon;
      const where = placement === "unpinned" ? String(last_cpu) : cpulist;
      places.set(where, places.get(where) || isFar);
    }
    for (const [cpulist, isFar] of places) {
      for (const cpu of parseList(cpulist)) {
        const name = String(cpu);
        cpus.set(name, cpus.get(name) || (isFar && !own.includes(cpu)));
      }
    }
  }
  return cpus;
}

// A name that acts on nothing around it: without controls, and marks of direction.
const printable = (name) => String(name).replace(/\p{C}/gu, "?");

// The words in a GPU's box: its jobs, or how many processes it has.
function ofGpu(gpu, processes) {
  const its = processes.filter((it) => it.vendor === gpu.vendor && it.gpu === gpu.index && !it.daemon);
  const counts = gpu.processes ?? {};
  const far = [...FAR].reduce((sum, word) => sum + (counts[word] ?? 0), 0);
  const number = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const jobs = [...new Set(its.map(jobOf).filter(Boolean))].join(" ");
  const text = printable(jobs) || (number ? `${number} proc.` : gpu.audited ? "" : "?");
  return { far: far > 0, text: text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text };
}

function jobOf(process) {
  if (process.pod) return process.pod.name;
  if (process.job) return `${process.job.scheduler} ${process.job.id}`;
  return process.container ? `container ${process.container.slice(0, 12)}` : "";
}

function tableOfProcesses(processes) {
  const rows = processes.flatMap((it) => {
    const lists = [...new Set(it.threads.map((one) => one.cpulist))].join(" ");
    const cause = [it.cause, it.remedy].filter(Boolean).join(": ");
    return [[it.pid, it.name, jobOf(it), it.gpu, it.placement, lists], ...(cause ? [[cause]] : [])];
  });
  fill(["pid", "name", "job", "GPU", "placement", "may run on"], rows, 4);
}

function tableOfGpus(gpus) {
  const words = ["local", "mixed", "remote", "unpinned", "unknown"];
  const rows = gpus.flatMap((it) => {
    const counts = words.map((word) => it.processes?.[word] ?? "?");
    return [[it.index, ...counts], ...(it.unknown ? [[it.unknown]] : [])];
  });
  fill(["GPU", ...words], rows);
}

// Fills the table; a row of one cell is a note on the one above.
function fill(heads, rows, placement) {
  const table = section.querySelector("table");
  const line = (kind, cells) => {
    const row = document.createElement("tr");
    cells.forEach((text, place) => {
      const cell = row.appendChild(document.createElement(kind));
      cell.textContent = printable(text);
      if (kind === "th") cell.scope = "col";
      if (cells.length === 1) cell.colSpan = heads.length;
      if (kind === "td" && place === placement && FAR.has(text)) cell.className = "bad";
    });
    return row;
  };
  table.hidden = !rows.length;
  table.tHead.replaceChildren(line("th", heads));
  table.tBodies[0].replaceChildren(...rows.map((cells) => line("td", cells)));
}
