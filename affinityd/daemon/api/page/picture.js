// Shows plans and processes on a picture that the daemon drew, by setting classes of its elements.

import { drawn } from "/elements.js";

const COLORS = 8; // in picture.css: .r0 to .r7
const LETTERS = 6; // below a core

export function parseList(text) {
  const cpus = [];
  for (const part of text ? text.split(",") : []) {
    const [first, last = first] = part.split("-").map(Number);
    for (let cpu = first; cpu <= last; cpu++) cpus.push(cpu);
  }
  return cpus;
}

export function formatList(numbers) {
  const ordered = [...new Set(numbers)].sort((a, b) => a - b);
  const parts = [];
  for (let start = 0, end; start < ordered.length; start = end + 1) {
    for (end = start; ordered[end + 1] === ordered[end] + 1; ) end++;
    parts.push(start === end ? `${ordered[start]}` : `${ordered[start]}-${ordered[end]}`);
  }
  return parts.join(",");
}

// The eight ranks after the first ones are shifted, so that a GPU's second rank has another color.
export const color = (rank) => `r${(rank + Math.floor(rank / COLORS)) % COLORS}`;

// The elements of a kind, by name.
const named = (section, kind) =>
  new Map([...section.querySelectorAll(`.${kind}[data-name]`)].map((it) => [it.dataset.name, it]));

// Gives a CPU that several ranks have a stripe of each, and a title that names them all.
function stripe(element, ranks) {
  for (const old of element.querySelectorAll(".shared, title")) old.remove();
  if (ranks.length < 2) return;
  const box = element.querySelector("rect");
  const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => box[name].baseVal.value);
  const colors = [...new Set(ranks.map(color))];
  const part = (width - 2) / colors.length;
  for (const [place, name] of colors.entries()) {
    const group = drawn(element, "g", { class: `shared ${name}` });
    drawn(group, "rect", { x: x + 1 + place * part, y: y + 1, width: part, height: height - 2 });
    element.insertBefore(group, element.querySelector("text"));
  }
  drawn(element, "title", {}).textContent = `CPU ${element.dataset.name}: ranks ${formatList(ranks)}`;
}

// A machine's picture: its elements, by name, and the ranks of each CPU.
export class Picture {
  constructor(section) {
    this.cpus = named(section, "cpu");
    this.gpus = named(section, "gpu");
    this.cores = [...section.querySelectorAll(".core")].map((core) => ({
      label: core.querySelector(".rank"),
      cpus: [...core.querySelectorAll(".cpu")].map((it) => it.dataset.name),
    }));
    this.ranks = new Map();
  }

  // Shows a plan; null: none.
  plan(plan) {
    const allowed = plan && new Set(parseList(plan.allowed.cpulist));
    this.ranks = new Map([...this.cpus.keys()].map((cpu) => [cpu, []]));
    for (const rank of plan ? plan.ranks : []) {
      for (const cpu of parseList(rank.cpulist)) this.ranks.get(String(cpu))?.push(rank.rank);
    }
    for (const [cpu, element] of this.cpus) {
      const ranks = this.ranks.get(cpu);
      for (const name of [...element.classList].filter((it) => /^(r\d|disallowed|differs)$/.test(it))) element.classList.remove(name);
      if (ranks.length) element.classList.add(color(ranks[0]));
      stripe(element, ranks);
      const isOut = allowed && !allowed.has(Number(cpu)) && !element.matches(".reserved, .offline *");
      if (isOut) element.classList.add("disallowed");
    }
    for (const { label, cpus } of this.cores) {
      const ranks = cpus.flatMap((cpu) => this.ranks.get(cpu));
      const text = ranks.length ? `r${formatList(ranks)}` : "";
      label.textContent = text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text;
    }
    const planned = new Set((plan ? plan.ranks : []).map((it) => `${it.gpu.vendor}:${it.gpu.index}`));
    for (const [name, element] of this.gpus) element.classList.toggle("chosen", planned.has(name));
  }

  // Marks the CPUs that have other ranks in another picture.
  differ(other) {
    for (const [cpu, element] of this.cpus) {
      element.classList.toggle("differs", String(this.ranks.get(cpu)) !== String(other.ranks.get(cpu)));
    }
  }

  // Shows where threads run; `cpus`: CPU → whether a thread is far there; `gpus`: name → {text, far}.
  running(cpus, gpus) {
    for (const [cpu, element] of this.cpus) {
      element.classList.toggle("runs", cpus.has(cpu));
      element.classList.toggle("far", cpus.get(cpu) === true);
    }
    for (const [name, element] of this.gpus) {
      const said = gpus.get(name);
      element.classList.toggle("far", Boolean(said?.far));
      element.querySelector(".job").textContent = said ? said.text : "";
    }
  }
}
