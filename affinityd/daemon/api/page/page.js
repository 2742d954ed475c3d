// Tries plans: the form is the question, the address bar has it, the daemon answers it.

import { watch } from "/audit.js";
import { Picture, color } from "/picture.js";

const OTHER = "b."; // before the names of the second plan's options
const PAGE_ONLY = ["compare", "running", "more"];
const NOT_OF_EXEC = ["whose", "observe", "env", "nics", "format"]; // parameters that `affinityd exec` lacks
const WAIT = 120; // milliseconds after a key

const form = document.getElementById("question");
const views = document.getElementById("views");
const first = new View(views.querySelector(".view"));
let second = null;
let timer;

function View(section) {
  this.section = section;
  this.picture = new Picture(section.querySelector(".picture"));
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

// Fills the form from the address; what it has no control for is among "more".
function load() {
  const more = new URLSearchParams();
  for (const [name, value] of new URLSearchParams(location.search)) {
    const control = PAGE_ONLY.includes(name) && name === "more" ? null : form.elements.namedItem(name);
    if (!control?.name) more.append(name, value);
    else if (control.type === "checkbox") control.checked = true;
    else {
      control.value = value;
      if (control.value !== value) {
        control.value = "";
        if (value !== control.dataset.default) more.append(name, value);
      }
    }
  }
  form.elements.more.value = decodeURIComponent(more.toString().replaceAll("+", " "));
}

function save() {
  const said = new URLSearchParams([...new FormData(form)].filter(([name, value]) => value && name !== "more"));
  for (const [name, value] of new URLSearchParams(form.elements.more.value)) said.append(name, value);
  const query = said.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

const entries = () => form.elements.gpus.value.split(",").map((it) => it.trim()).filter((it) => it && it !== "all");

function update() {
  const chosen = entries();
  for (const box of form.querySelectorAll("[data-gpu]")) box.checked = chosen.includes(box.value);
  const isCompared = form.elements.compare.checked;
  document.getElementById("other").hidden = !isCompared;
  if (isCompared && !second) {
    const copy = first.section.cloneNode(true);
    copy.setAttribute("aria-label", "The plan to compare with");
    copy.querySelector("h2").textContent = "Compared with";
    views.append(copy);
    second = new View(copy);
  } else if (!isCompared && second) {
    second.section.remove();
    second = null;
  }
  views.classList.toggle("two", isCompared);
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
  say(view, `${mode}, share=${share}, allowed CPUs ${plan.allowed.cpulist}`, false);
  fill(view, plan.ranks.map((rank) => row(rank, query)), plan.warnings);
  const news = document.getElementById("news");
  news.hidden = String(plan.generation) === document.body.dataset.generation;
  if (!news.hidden) news.textContent = "The machine was read again and differs: reload this page.";
}

function say(view, text, isRefused) {
  const line = view.section.querySelector(".answer");
  line.textContent = text;
  line.classList.toggle("refused", isRefused);
}

function fill(view, rows, warnings) {
  const table = view.section.querySelector("table");
  table.hidden = !rows.length;
  table.tBodies[0].replaceChildren(...rows);
  const lines = warnings.map((it) => made("li", `${it.code}: ${it.message}`));
  view.section.querySelector(".warnings").replaceChildren(...lines);
  if (second) {
    first.picture.differ(second.picture);
    second.picture.differ(first.picture);
  } else first.picture.differ(first.picture);
}

function made(tag, text = "", name = "") {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (name) element.className = name;
  return element;
}

function row(rank, query) {
  const number = made("th", String(rank.rank));
  number.scope = "row";
  number.prepend(mark(rank.rank));
  const details = made("details");
  details.append(made("summary", `rank ${rank.rank}`), ...rank.reasons.map((it) => made("p", it)));
  details.append(...commands(rank, query).map((it) => copied(made("code", it))));
  const list = made("td", "", "list");
  list.append(copied(made("code", rank.cpulist)));
  const last = made("td");
  last.append(details);
  const locality = made("td", rank.locality, rank.locality === "local" ? "" : "bad");
  const gpu = made("td", String(rank.gpu.index));
  gpu.title = rank.gpu.pci_bus_id;
  const cells = [gpu, locality, made("td", String(rank.physical_cores))];
  const line = made("tr");
  line.append(number, ...cells, list, last);
  return line;
}

// A rank's color, as the picture has it.
function mark(rank) {
  const make = (parent, tag) => parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", tag));
  const svg = make(document.createDocumentFragment(), "svg");
  const group = make(svg, "g");
  const box = make(group, "rect");
  svg.setAttribute("class", "picture mark");
  svg.setAttribute("aria-hidden", "true");
  group.setAttribute("class", color(rank));
  box.setAttribute("width", "12");
  box.setAttribute("height", "12");
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

// A text with a button that copies it; it stays selected, for Ctrl-C where a browser refuses.
function copied(code) {
  const button = made("button", "copy");
  button.type = "button";
  button.setAttribute("aria-label", `copy ${code.textContent}`);
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(code);
    button.textContent = document.execCommand("copy") ? "copied" : "selected";
  });
  const line = made("div", "", "command");
  line.append(code, button);
  return line;
}

function toggle(entry) {
  const chosen = entries();
  form.elements.gpus.value = (chosen.includes(entry) ? chosen.filter((it) => it !== entry) : [...chosen, entry]).join(",");
  update();
}

const pictures = () => [first, second].filter(Boolean).map((it) => it.picture);

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", (event) => {
  clearTimeout(timer);
  if (event.target.dataset.gpu) toggle(event.target.value);
  else timer = setTimeout(update, event.target.tagName === "INPUT" && event.target.type !== "checkbox" ? WAIT : 0);
  if (event.target.name === "running") watch(event.target.checked, pictures);
});
form.addEventListener("reset", () => setTimeout(update));
views.addEventListener("click", (event) => {
  const name = event.target.closest(".gpu[data-name]")?.dataset.name;
  const box = name && form.querySelector(`[data-gpu="${CSS.escape(name)}"]`);
  if (box) toggle(box.value);
});

load();
update();
watch(form.elements.running.checked, pictures);
