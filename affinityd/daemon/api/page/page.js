// The second view tries plans: the form has the question, the address bar repeats it, the daemon answers.

import { mark, watch } from "/audit.js";
import { button, copied, drawn, made } from "/elements.js";
import { Picture, color } from "/picture.js";

const OTHER = "b."; // before the names of the second plan's options
const PAGE_ONLY = ["compare", "running", "more"];
const NOT_OF_EXEC = ["whose", "observe", "env", "nics", "format"]; // parameters that `affinityd exec` lacks
const NOTES = new Set(["no_local_nic", "unknown_locality"]); // about the machine itself, which nobody can change
const MOST_ALIKE = 8; // warnings of one kind before they are folded
const WAIT = 120; // milliseconds after a key

const form = document.getElementById("question");
const options = document.getElementById("options");
const views = document.getElementById("views");
const first = new View(views.querySelector(".view"));
let second = null;
let timer;

function View(section) {
  this.section = section;
  this.picture = new Picture(section);
  this.opened = new Set(); // ranks whose commands are shown
}

// The parameters of /plan that the form asks for; the second plan's options where they are given.
function question(isSecond) {
  const said = [...new FormData(form)].filter(([name, value]) => value.trim() && !PAGE_ONLY.includes(name));
  const more = [...new URLSearchParams(form.elements.more.value)];
  const options = said.filter(([name]) => name.startsWith(OTHER)).map(([name, value]) => [name.slice(OTHER.length), value]);
  const names = [...form.elements].filter((it) => it.name?.startsWith(OTHER)).map((it) => it.name.slice(OTHER.length));
  const own = said.filter(([name]) => !name.startsWith(OTHER));
  return new URLSearchParams(isSecond ? [...own.filter(([name]) => !names.includes(name)), ...options, ...more] : [...own, ...more]);
}

// Fills the form from the address; parameters without a control go to "more".
function load() {
  const more = [];
  const filled = new Set(["more"]);
  for (const [name, value] of new URLSearchParams(location.search)) {
    const control = filled.has(name) ? null : form.elements.namedItem(name);
    if (!control?.name || !put(control, value)) more.push([name, value]);
    filled.add(name); // the daemon refuses a parameter that is there twice
  }
  const escaped = (text) => text.replace(/[%&+#=]/g, encodeURIComponent);
  form.elements.more.value = more.map((pair) => pair.map(escaped).join("=")).join("&");
  const isSet = [...options.querySelectorAll("[name]")].some((it) => it.value && it.name !== "gpus");
  options.open = isSet || matchMedia("(min-width: 46rem)").matches;
}

// Gives a control a value; returns whether it takes it.
function put(control, value) {
  if (control.type === "checkbox") control.checked = value === control.value;
  else control.value = value === control.dataset.default ? "" : value;
  return control.type === "checkbox" ? control.checked : [control.value, control.dataset.default].includes(value);
}

function save() {
  const said = new URLSearchParams([...new FormData(form)].filter(([name, value]) => value && name !== "more"));
  for (const [name, value] of new URLSearchParams(form.elements.more.value)) said.append(name, value);
  const query = said.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

const entries = () => form.elements.gpus.value.split(",").map((it) => it.trim()).filter((it) => it && it !== "all");

// Whether an entry of "gpus" names a checkbox's GPU: by index, the UUID or its beginning, or the PCI bus id.
function names(entry, { value, dataset }) {
  const pci = entry.toLowerCase().replace(/^0+(?=[0-9a-f]{4,}:)/, "");
  return entry === value || pci === dataset.pci || (/^GPU-./.test(entry) && dataset.uuid.startsWith(entry));
}

function update() {
  const chosen = entries();
  for (const box of form.querySelectorAll("[data-gpu]")) box.checked = chosen.some((it) => names(it, box));
  const isCompared = form.elements.compare.checked;
  document.getElementById("other").hidden = !isCompared;
  if (isCompared && !second) {
    const copy = first.section.cloneNode(true);
    copy.setAttribute("aria-label", "The plan to compare with");
    copy.querySelector("h3").textContent = "Compared with";
    views.append(copy);
    second = new View(copy);
  } else if (!isCompared && second) {
    second.section.remove();
    second = null;
  }
  views.classList.toggle("two", isCompared);
  markProcesses();
  save();
  ask(first, question(false));
  if (second) ask(second, question(true));
}

async function ask(view, query) {
  view.pending?.abort();
  view.pending = new AbortController();
  try {
    const reply = await fetch(`/plan?${query}`, { headers: { accept: "application/json" }, signal: view.pending.signal });
    const answer = await reply.json();
    reply.ok ? show(view, answer, query) : refuse(view, `${answer.title}: ${answer.detail}`);
  } catch (error) {
    if (error.name !== "AbortError") refuse(view, "The daemon does not answer.");
  }
}

function refuse(view, text) {
  view.picture.plan(null);
  say(view, text, true);
  fill(view, [], []);
}

function show(view, plan, query) {
  view.picture.plan(plan);
  const { mode, share } = plan.request;
  const others = ["scope", "multithreading", "balanced"].filter((name) => String(plan.request[name]) !== form.elements[name].dataset.default);
  const said = [mode, ...others.map((name) => `${name}=${plan.request[name]}`), `share=${share}`];
  say(view, `${said.join(", ")}, allowed CPUs ${plan.allowed.cpulist}`, false);
  fill(view, plan.ranks.flatMap((rank) => rows(view, rank, query)), plan.warnings);
  const news = document.getElementById("news");
  news.hidden = String(plan.generation) === document.body.dataset.generation;
  if (!news.hidden) news.textContent = "The machine was read again and differs: reload this page.";
}

function say(view, text, isRefused) {
  const line = view.section.querySelector(".answer");
  line.textContent = text;
  line.classList.toggle("refused", isRefused && form.querySelector("[data-gpu]") !== null); // nobody can change a lack of GPUs
}

function fill(view, rows, warnings) {
  const table = view.section.querySelector("table");
  table.hidden = !rows.length;
  table.tBodies[0].replaceChildren(...rows);
  const codes = [...new Set(warnings.map((it) => it.code))];
  const lines = codes.flatMap((code) => warned(code, warnings.filter((it) => it.code === code)));
  view.section.querySelector(".warnings").replaceChildren(...lines);
  if (second) {
    first.picture.differ(second.picture);
    second.picture.differ(first.picture);
  } else first.picture.differ(first.picture);
}

// The lines of a warning; many lines are folded into one.
function warned(code, warnings) {
  const name = NOTES.has(code) ? "" : "bad";
  const lines = warnings.map((it) => made("li", `${code}: ${it.message}`, name));
  if (lines.length <= MOST_ALIKE) return lines;
  const [line, fold, list] = [made("li", "", name), made("details"), made("ul")];
  list.append(...lines);
  fold.append(made("summary", `${code}: ${lines.length} warnings`), list);
  line.append(fold);
  return [line];
}

// A rank's row, and one below it with its reasons and commands, which a button shows.
function rows(view, rank, query) {
  const number = made("th", String(rank.rank));
  number.scope = "row";
  number.prepend(colorOf(rank.rank));
  const list = made("td", "", "list");
  list.append(copied(listed(rank.cpulist)));
  const locality = made("td", rank.locality, ["mixed", "remote"].includes(rank.locality) ? "bad" : "");
  const gpu = made("td", String(rank.gpu.index));
  gpu.title = rank.gpu.pci_bus_id;
  const show = button("show", `reasons and commands of rank ${rank.rank}`, () => open(below.hidden));
  const [line, below, last, why] = [made("tr"), made("tr"), made("td"), made("td")];
  last.append(show);
  line.append(number, gpu, locality, made("td", String(rank.physical_cores)), list, last);
  why.colSpan = line.cells.length;
  why.append(...rank.reasons.map((it) => made("p", it)), ...commands(rank, query).map((it) => copied(made("code", it))));
  below.append(why);
  const open = (isOpen) => {
    below.hidden = !isOpen;
    show.setAttribute("aria-expanded", String(isOpen));
    show.textContent = isOpen ? "hide" : "show";
    view.opened[isOpen ? "add" : "delete"](rank.rank);
  };
  open(view.opened.has(rank.rank));
  return [line, below];
}

// A cpulist, which may be broken after its commas.
function listed(cpulist) {
  const code = made("code");
  code.append(...cpulist.split(/(?<=,)/).flatMap((part) => [made("span", part), made("wbr")]));
  return code;
}

// A rank's color, as the picture has it.
function colorOf(rank) {
  const svg = drawn(document.createDocumentFragment(), "svg", { class: "picture mark", "aria-hidden": "true" });
  drawn(drawn(svg, "g", { class: color(rank) }), "rect", { width: 12, height: 12 });
  return svg;
}

const quoted = (text) => (/^[\w.,:/@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// The commands that give one rank its CPUs.
function commands(rank, query) {
  const its = new URLSearchParams(query);
  its.set("rank", rank.rank);
  const given = [...its].filter(([name]) => !NOT_OF_EXEC.includes(name));
  if (!its.has("mode")) given.push(["mode", form.elements.mode.dataset.default]);
  const options = given.map(([name, value]) => `--${name.replaceAll("_", "-")}=${quoted(value)}`);
  its.set("format", "cpulist");
  return [
    `curl -s ${quoted(`${location.origin}/plan?${its}`)}`,
    `taskset -c ${rank.cpulist} COMMAND`,
    `numactl --physcpubind=${rank.cpulist} --localalloc COMMAND`,
    `affinityd exec ${options.join(" ")} -- COMMAND`,
  ];
}

function toggle(box) {
  const chosen = entries();
  const others = chosen.filter((it) => !names(it, box));
  form.elements.gpus.value = (others.length < chosen.length ? others : [...chosen, box.value]).join(",");
  update();
}

const pictures = () => [first, second].filter(Boolean).map((it) => it.picture);
const markProcesses = () => mark(pictures(), form.elements.running.checked);

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", (event) => {
  clearTimeout(timer);
  if (event.target.dataset.gpu) toggle(event.target);
  else timer = setTimeout(update, event.target.tagName === "INPUT" && event.target.type !== "checkbox" ? WAIT : 0);
});
form.addEventListener("reset", () => setTimeout(update));
views.addEventListener("click", (event) => {
  const name = event.target.closest(".gpu[data-name]")?.dataset.name;
  const box = name && form.querySelector(`[data-gpu="${CSS.escape(name)}"]`);
  if (box) toggle(box);
});

load();
update();
watch({ scanned: markProcesses, back: update });
