// Elements and words that both views of the page are made of. Texts are set as text, never as HTML.

export function made(tag, text = "", name = "") {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (name) element.className = name;
  return element;
}

export function drawn(parent, tag, attributes) {
  const element = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", tag));
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

export function button(text, label, act) {
  const element = made("button", text);
  element.type = "button";
  if (label) element.setAttribute("aria-label", label);
  element.addEventListener("click", act);
  return element;
}

// A text with a button that copies it; the text stays selected, for Ctrl-C if a browser refuses.
export function copied(code) {
  const copy = button("copy", `copy ${code.textContent}`, () => {
    getSelection().selectAllChildren(code);
    copy.textContent = document.execCommand("copy") ? "copied" : "selected";
  });
  const line = made("div", "", "command");
  line.append(code, copy);
  return line;
}

// A remedy, and a button that copies its command, or the whole remedy if it has no command.
export function remedied(text) {
  const [, before, command, after] = text.match(/^(.*(?:; |: ))?(affinityd [^;]*?)( fixes it now)?$/) ?? [];
  if (!command) return copied(made("span", printable(text)));
  const parts = made("div");
  const code = made("code", printable(command));
  if (before) parts.append(made("p", printable(`${before.replace(/[;:] $/, "")}${after ? "; this fixes it now:" : ":"}`)));
  parts.append(copied(code));
  return parts;
}

// Shows another text; an equal text stays, or a screen reader would read it again.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}

// Replaces what is inside an element, and keeps the focus on what has the same data-focus.
export function refill(element, ...children) {
  const focus = element.contains(document.activeElement) && document.activeElement.dataset.focus;
  element.replaceChildren(...children);
  if (focus) element.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
}

// A name without control characters and marks of direction, which act on the text around it.
export const printable = (name) => String(name).replace(/\p{C}/gu, "?");

export function amount(bytes) {
  const gib = bytes / 2 ** 30;
  return gib < 1 ? `${Math.round(bytes / 2 ** 20)} MiB` : `${gib.toFixed(gib < 10 ? 1 : 0)} GiB`;
}

// Seconds as people say them: 12 s, 4 min, 3.2 h.
export function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export const count = (number, word) => `${number} ${word}${number === 1 ? "" : /s$/.test(word) ? "es" : "s"}`;
