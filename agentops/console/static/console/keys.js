/* The keyboard of every page. Single keys act outside of fields only, and can be switched off (WCAG 2.1.4). */

import { keep, make, openPalette, recall, remember, shell } from "./palette.js";

const AFTER_G_MS = 1500;
const LONG_TEXT = 150; // characters
const SINGLE_KEYS = "agentops.keys";
const ROWS = "#result_list tbody tr, [data-live-rows] tbody tr, table[data-keys] tbody tr";
const NO_TEXT = new Set(["button", "checkbox", "file", "image", "radio", "reset", "submit"]);
const HELP = [
  ["Ctrl + K", "Command palette: go to a page, or to a run by its id"],
  ["/", "Search field of this page"],
  ["j, k", "Next row, previous row"],
  ["Enter", "Open the row"],
  ["x", "Select the row"],
  ["Shift + x", "Select all rows from the last selected one to this"],
  ["f", "Page of a run: follow the timeline, or stop"],
  ["?", "This list"],
];

let afterG = null; // the timer that runs after a g
let lastBox = null; // the check box that a range begins at

function areOn() {
  return recall(SINGLE_KEYS, "on") !== "off";
}

function isField(target) {
  return target.isContentEditable || target.matches("textarea, select") || (target.matches("input") && !NO_TEXT.has(target.type));
}

// -- rows ----------------------------------------------------------------------------------------

function rows() {
  const found = [...document.querySelectorAll(ROWS)];
  const others = found.length ? found : [...document.querySelectorAll("#content table tbody tr")].filter(opener);
  return others.filter((row) => row.offsetParent !== null);
}

function opener(row) {
  return row.querySelector("th a[href], td a[href]");
}

/* The row that has the focus. Enter opens it because the focus is on its link. */
function here() {
  return document.activeElement.closest("tbody tr");
}

function move(step) {
  const all = rows();
  const at = all.indexOf(here());
  const row = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : at + step];
  if (!row) {
    return all.length > 0;
  }
  const target = opener(row) || row;
  if (target === row) {
    row.tabIndex = -1;
  }
  target.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
  return true;
}

function boxOf(row) {
  return row?.querySelector("input[type=checkbox]");
}

function select(isRange) {
  const box = boxOf(here());
  if (!box || box.disabled) {
    return false;
  }
  const from = lastBox?.isConnected ? lastBox : null; // the click below moves it
  box.click();
  if (isRange && from) {
    const boxes = rows().map(boxOf).filter(Boolean);
    const [first, last] = [boxes.indexOf(from), boxes.indexOf(box)].sort((a, b) => a - b);
    boxes.slice(first, last + 1).forEach((one) => one.checked !== box.checked && one.click());
  }
  lastBox = box;
  return true;
}

// -- help ----------------------------------------------------------------------------------------

function helpRows() {
  const goes = shell.pages.filter((page) => page.key).map((page) => [`g then ${page.key}`, page.name]);
  return [...HELP.slice(0, 1), ...goes, ...HELP.slice(1)];
}

function row([keys, what]) {
  return make("tr", {}, make("th", { scope: "row" }, make("kbd", {}, keys)), make("td", {}, what));
}

function makeHelp() {
  const table = make("table", { class: "plain" }, make("caption", { class: "visually-hidden" }, "Keys and what they do"));
  const heads = ["Key", "What it does"].map((name) => make("th", { scope: "col" }, name));
  table.append(make("thead", { class: "visually-hidden" }, make("tr", {}, ...heads)), make("tbody", {}, ...helpRows().map(row)));
  const box = make("input", { type: "checkbox", id: "single-keys" });
  box.checked = areOn();
  box.addEventListener("change", () => keep(SINGLE_KEYS, box.checked ? "on" : "off"));
  const choice = make("label", { class: "shell-choice" }, box, " Single keys (all but Ctrl + K), in this browser");
  const close = make("button", { type: "button", class: "button" }, "Close");
  const dialog = make("dialog", { id: "keys-help", class: "shell-dialog", "aria-labelledby": "keys-help-name" });
  close.addEventListener("click", () => dialog.close());
  dialog.append(make("h2", { id: "keys-help-name" }, "Keys"), table, choice, close);
  document.body.append(dialog);
  return dialog;
}

let help = null;

function openHelp() {
  help ??= makeHelp();
  help.showModal();
  return true;
}

// -- keys ----------------------------------------------------------------------------------------

function search() {
  const field = document.getElementById("searchbar") || document.querySelector("#content input[type=search]");
  field?.focus();
  field?.select();
  return Boolean(field);
}

function go(letter) {
  clearTimeout(afterG);
  afterG = null;
  const page = shell.pages.find(({ key }) => key === letter);
  if (page) {
    window.location.assign(page.address);
  }
  return Boolean(page);
}

function beginGo() {
  clearTimeout(afterG);
  afterG = setTimeout(() => (afterG = null), AFTER_G_MS);
  return true;
}

function follow() {
  const button = document.getElementById("follow");
  button?.click();
  return Boolean(button);
}

const ACTS = {
  g: beginGo,
  "/": search,
  "?": openHelp,
  f: follow,
  j: () => move(1),
  k: () => move(-1),
  x: () => select(false),
  X: () => select(true),
};

function single(event) {
  const isPlain = !(event.ctrlKey || event.metaKey || event.altKey || event.isComposing);
  if (!isPlain || event.defaultPrevented || isField(event.target) || document.querySelector("dialog[open]") || !areOn()) {
    return false;
  }
  if (afterG !== null) {
    return go(event.key);
  }
  return Object.hasOwn(ACTS, event.key) && ACTS[event.key]();
}

function onKey(event) {
  const isPalette = (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k";
  if (isPalette) {
    openPalette();
  }
  if (isPalette || single(event)) {
    event.preventDefault();
  }
}

function button(id, act) {
  const found = document.getElementById(id);
  if (found) {
    found.hidden = false;
    found.addEventListener("click", act);
  }
}

/* Long texts and wide tables scroll in their place, so the arrow keys must reach them. */
function reachTexts() {
  document.querySelectorAll(".scroll:not(:has(a, button, input, select))").forEach((frame) => (frame.tabIndex = 0));
  document.querySelectorAll(".change-form .readonly").forEach((text) => {
    if (text.textContent.length > LONG_TEXT) {
      text.tabIndex = 0;
    }
  });
}

if (shell) {
  remember();
  reachTexts();
  document.addEventListener("keydown", onKey);
  document.addEventListener("change", ({ target }) => target.matches("tbody input[type=checkbox]") && (lastBox = target));
  button("palette-open", openPalette);
  button("keys-open", openHelp);
}
