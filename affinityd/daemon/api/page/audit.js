// The first view: the state of the node by the last scan: its findings, and a card for each GPU.

import { amount, button, copied, count, drawn, duration, made, printable, refill, remedied, say } from "/elements.js";
import { parseList } from "/picture.js";
import { isFar, isOfGpu, jobOf, showProcesses, showGpu, userOf } from "/processes.js";

const FAR = new Set(["mixed", "remote", "unpinned"]); // placements
const RED = new Set(["mixed", "remote"]); // an unpinned process may run anywhere, also near
const SECONDS = 5; // between two questions
const PATIENCE = 8; // seconds for an answer
const OLD = 60; // seconds after which a scan is old, or three intervals
const LETTERS = 11; // in a GPU's box on the picture
const MANY_GPUS = 16; // with more GPUs the cards are smaller
const MOST_JOBS = 4; // on a card
// Letter of the history → its state, and the height of its bar.
const STATES = { x: ["lost", 10], r: ["remote", 9], m: ["mixed", 9], o: ["orphan", 8], w: ["waiting", 7], p: ["unpinned", 6], u: ["unknown", 5], l: ["local", 4], j: ["reserved", 3], i: ["idle", 2] };
const MOST_CONCERNS = 8; // of a finding

const section = document.getElementById("now");
const running = document.querySelector("[name=running]");
const within = (name) => section.querySelector(name);
let last = null; // {audit, tag, scanned: by this machine's clock}
let fault = ""; // why there is no newer scan
let timer;

// Asks for the scan now and every few seconds. `scanned` is called for each new one, `back` when the
// daemon answers again.
export function watch({ scanned, back }) {
  const look = async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      const wasGone = fault;
      if (await ask()) {
        show(last.audit);
        scanned();
      }
      if (wasGone && !fault) back();
      tick();
    }
    timer = setTimeout(look, SECONDS * 1000);
  };
  document.addEventListener("visibilitychange", look);
  running.addEventListener("change", look);
  setInterval(tick, 1000);
  look();
}

// Returns whether there is a new scan.
async function ask() {
  try {
    const headers = { accept: "application/json", ...(last && { "if-none-match": last.tag }) };
    const reply = await fetch("/audit", { headers, signal: AbortSignal.timeout(PATIENCE * 1000) });
    const audit = reply.status === 304 ? last.audit : await reply.json();
    fault = reply.ok || reply.status === 304 ? "" : audit.detail;
    if (!reply.ok || audit === last?.audit) return false;
    const now = Date.parse(reply.headers.get("date")) || Date.now(); // by the daemon's clock
    last = { audit, tag: reply.headers.get("etag") ?? "", scanned: Date.now() - Math.max(0, now - Date.parse(audit.time)) };
    return true;
  } catch {
    fault = "The daemon does not answer.";
    return false;
  }
}

// Says how old the scan is, and shows the banner where it is too old, or the daemon is gone.
function tick() {
  const age = last && Math.max(0, Math.round((Date.now() - last.scanned) / 1000));
  const isOld = last && (fault || age > Math.max(OLD, 3 * document.body.dataset.interval));
  const state = fault || (isOld ? "The daemon answers, and scans no more." : "");
  say(within(".age"), last ? `${isOld ? "OLD: " : ""}scanned ${age} s ago` : "");
  say(within("#banner"), isOld ? `${state} The state below is that of ${new Date(last.scanned).toLocaleTimeString()}.` : "");
  say(within(".answer"), last ? seen(last.audit) : state);
  section.classList.toggle("old", Boolean(isOld));
}

function seen(audit) {
  const words = { all: "", counts: "No process is named here." };
  const skipped = audit.skipped ? `${count(audit.skipped, "process")} not reached.` : "";
  return [words[audit.sees], skipped, ...audit.notices.map(printable)].filter(Boolean).join(" ");
}

function show(audit) {
  const processes = (audit.processes ?? []).filter((it) => !it.daemon);
  const lines = audit.findings.map(found);
  const list = within("#findings");
  if (list.dataset.shown !== JSON.stringify(audit.findings)) {
    list.dataset.shown = JSON.stringify(audit.findings); // equal findings stay, and so does a selection to copy
    list.replaceChildren(...lines);
  }
  refill(within("#cards"), ...audit.gpus.map((gpu) => card(gpu, processes.filter((it) => isOfGpu(it, gpu)), Boolean(audit.processes))));
  within("#cards").className = audit.gpus.length > MANY_GPUS ? "many" : "few";
  within("#see_more").hidden = audit.sees !== "counts";
  showProcesses(audit.processes && processes, audit.gpus);
  say(within("#demo"), audit.demo ? `A demo: the machine ${audit.demo}, with made-up processes. Nothing here is of this computer.` : "");
  const page = document.body.dataset;
  const gpus = [...document.querySelectorAll("[data-gpu]")].map((it) => it.dataset.gpu);
  const isOther = audit.node !== page.node || audit.gpus.some((it) => !gpus.includes(nameOf(it)));
  say(within("#other_node"), isOther ? "Another machine answers now, or its GPUs differ: reload this page." : "");
}

// A finding with its GPUs and each job's remedy; with the general remedy if no job has its own.
function found({ state, text, remedy, concerns }) {
  const line = made("li", "", `state ${state}`);
  line.append(made("b", text));
  for (const concern of concerns.slice(0, MOST_CONCERNS)) {
    line.append(made("p", printable(`${concern.gpus}: ${concern.why}`)));
    if (concern.remedy) line.append(remedied(concern.remedy));
  }
  if (concerns.length > MOST_CONCERNS) line.append(made("p", `and ${concerns.length - MOST_CONCERNS} more, below`));
  if (remedy && !concerns.some((it) => it.remedy)) line.append(made("p", remedy, "remedy"));
  return line;
}

const nameOf = (gpu) => `${gpu.vendor}:${gpu.index}`;

function card(gpu, processes, areNamed) {
  const element = made("article", "", `card ${gpu.state}`);
  const head = made("h3", `GPU ${gpu.index}`);
  head.title = [gpu.pci_bus_id, gpu.uuid, gpu.numa_node === null ? "node unknown" : `NUMA node ${gpu.numa_node}`, gpu.near && `near CPUs ${gpu.near}`].filter(Boolean).join(", ");
  head.append(made("span", gpu.state, `state ${gpu.state}`), made("span", loadOf(gpu), "load"));
  const facts = made("dl");
  for (const [name, text, isBad] of factsOf(gpu)) {
    if (!text) continue;
    const line = made("div");
    line.append(made("dt", name), made("dd", text, isBad ? "bad" : ""));
    facts.append(line);
  }
  element.append(head);
  const number = Object.values(gpu.processes ?? {}).reduce((sum, it) => sum + it, 0);
  if (!gpu.audited) element.append(made("p", printable(gpu.unknown)));
  else if (processes.length) element.append(jobsOf(processes));
  if (areNamed && processes.length) {
    const filter = button(count(processes.length, "process"), `show the processes of GPU ${gpu.index}`, () => showGpu(nameOf(gpu)));
    filter.dataset.focus = nameOf(gpu);
    head.append(filter);
  } else if (gpu.audited && number) head.append(made("span", count(number, "process"), "faint"));
  element.append(facts, historyOf(gpu));
  return element;
}

// How busy a GPU and its memory are, by NVML; "": not known.
function loadOf({ load: { busy_percent: busy, memory_used_bytes: used, memory_bytes: total } }) {
  const memory = total === null ? "" : `${amount(used)} of ${amount(total)}`;
  return [busy === null ? "" : `${busy}% busy`, memory].filter(Boolean).join(", ");
}

// The jobs of a GPU and their users, those that are far first.
function jobsOf(processes) {
  const jobs = new Map();
  for (const process of farFirst(processes)) {
    const job = jobOf(process) || `${process.name} (no job)`;
    const text = `${job}${userOf(process) ? `, user ${userOf(process)}` : ""}`;
    const known = jobs.get(text) ?? { isFar: false, orphan: null };
    jobs.set(text, { isFar: known.isFar || isFar(process), orphan: known.orphan ?? process.orphan });
  }
  const list = made("ul", "", "jobs");
  for (const [text, { isFar, orphan }] of [...jobs].slice(0, MOST_JOBS)) {
    const line = made("li", printable(text), isFar ? "bad" : "");
    if (orphan) line.append(made("span", ` orphan: ${printable(orphan)}`));
    list.append(line);
  }
  if (jobs.size > MOST_JOBS) list.append(made("li", `and ${jobs.size - MOST_JOBS} more`));
  return list;
}

const farFirst = (processes) => [...processes.filter((it) => it.cause), ...processes.filter((it) => !it.cause)];

// The lines of a card: a name, a text, and whether it is bad; a line without a text is left out.
function* factsOf(gpu) {
  const counted = (numbers) => Object.entries(numbers ?? {}).filter(([, it]) => it).map(([word, it]) => `${it} ${word}`).join(", ");
  const causes = counted(gpu.mismatch);
  yield ["placement", [counted(gpu.processes), causes && `cause: ${causes}`].filter(Boolean).join("; "), RED.has(gpu.state)];
  if (gpu.orphans) yield ["orphans", count(gpu.orphans, "process"), true];
  const hour = gpu.last_hour ?? {};
  if (hour.total >= 1) {
    const percent = gpu.near === null ? null : Math.round((100 * hour.remote) / hour.total);
    const text = percent === null ? "unknown" : `${percent}% of ${duration(hour.total)} CPU time was far`;
    yield ["time lost, 1 h", text, RED.has(gpu.state) && percent > 0];
  }
  const waits = [hour.waited >= 1 && `${duration(hour.waited)} for CPUs`, hour.throttled >= 1 && `${duration(hour.throttled)} throttled`];
  yield ["waits, 1 h", waits.filter(Boolean).join(", "), gpu.state === "waiting"];
  const { local = 0, remote = 0, unknown = 0 } = gpu.host_memory_bytes ?? {};
  const memory = [local && `${amount(local)} near`, remote && `${amount(remote)} far`, unknown && `${amount(unknown)} unknown`];
  if (gpu.host_memory_pinned_far_bytes) memory.push("some likely pinned");
  yield ["host memory", memory.filter(Boolean).join(", "), remote >= 2 ** 30 && remote >= (local + remote) / 10];
  yield ["NIC", document.querySelector(`[data-gpu="${CSS.escape(nameOf(gpu))}"]`)?.dataset.nics ?? "", false];
}

// The last hour as a strip, a bar a minute: the worse, the higher.
function historyOf(gpu) {
  const figure = made("figure");
  if (!/[^.]/.test(gpu.history)) return figure;
  const svg = drawn(figure, "svg", { class: "history", role: "img", viewBox: "0 0 60 10", preserveAspectRatio: "none" });
  const minutes = new Map();
  for (const run of gpu.history.matchAll(/(.)\1*/g)) {
    const [state, height] = STATES[run[1]] ?? ["no scan", 0];
    minutes.set(state, (minutes.get(state) ?? 0) + run[0].length);
    if (height) drawn(svg, "rect", { class: state, x: run.index, y: 10 - height, width: run[0].length, height });
  }
  const order = [...Object.values(STATES).map(([state]) => state), "no scan"].filter((it) => minutes.has(it));
  const text = order.map((it) => `${it} ${minutes.get(it)} min`).join(", ");
  svg.setAttribute("aria-label", `last hour of GPU ${gpu.index}: ${text}`);
  drawn(svg, "title", {}).textContent = text;
  figure.append(made("figcaption", `last hour: ${text}`));
  return figure;
}

// Marks where the processes of the last scan run on pictures of the machine, or removes the marks.
export function mark(pictures, isOn) {
  const { gpus, processes = [] } = (isOn && last?.audit) || { gpus: [] };
  const cpus = whereTheyRun(gpus, processes);
  const words = new Map(gpus.map((gpu) => [nameOf(gpu), ofGpu(gpu, processes)]));
  for (const picture of pictures) picture.running(cpus, words);
}

// Each CPU that processes may run on, and whether a process is far from its GPU there. An unpinned process
// counts for the CPUs on which its threads ran last.
function whereTheyRun(gpus, processes) {
  const near = new Map(gpus.map((gpu) => [nameOf(gpu), parseList(gpu.near)]));
  const cpus = new Map();
  for (const process of processes) {
    const own = [process, ...process.gpus_beside].flatMap((it) => near.get(`${it.vendor}:${it.gpu}`) ?? []);
    const isFar = FAR.has(process.placement) && !process.daemon;
    for (const cpu of parseList(process.placement === "unpinned" ? process.ran_on : process.masks)) {
      const name = String(cpu);
      cpus.set(name, cpus.get(name) || (isFar && !own.includes(cpu)));
    }
  }
  return cpus;
}

// The words in a GPU's box: its jobs, the far ones first, or how many processes it has.
function ofGpu(gpu, processes) {
  const its = processes.filter((it) => isOfGpu(it, gpu) && !it.daemon);
  const counts = gpu.processes ?? {};
  const far = [...FAR].reduce((sum, word) => sum + (counts[word] ?? 0), 0);
  const number = Object.values(counts).reduce((sum, it) => sum + it, 0);
  const jobs = [...new Set(farFirst(its).map(jobOf).filter(Boolean))].join(" ");
  const text = printable(jobs) || (number ? `${number} proc.` : gpu.audited ? "" : "?");
  return { far: far > 0, text: text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text };
}
