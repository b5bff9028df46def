/* The command palette: pages of the menu, a run by its id, and what was opened lately. Data only ever becomes text. */

const RECENT_MOST = 8;
const SHOWN_MOST = 12;
const WHOLE_ID = /^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$/i;
const PART_OF_ID = /^[0-9a-f][0-9a-f-]{3,}$/i;

const block = document.getElementById("console-shell");
/* {user, run, runs, pages: [{name, group, address, key}]}; null where nobody is signed in. */
export const shell = block && JSON.parse(block.textContent);
const store = shell && `agentops.recent.${shell.user}`;

export function make(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  made.append(...inside);
  return made;
}

/* Storage may be switched off, or hold what another version wrote. */
export function recall(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function keep(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // The page works without.
  }
}

function recent() {
  const kept = recall(store, []);
  const isOurs = (one) => typeof one?.name === "string" && String(one?.address).startsWith(shell.root);
  return Array.isArray(kept) ? kept.filter(isOurs).slice(0, RECENT_MOST) : [];
}

/* Remember a page of one thing; those of the menu are in the palette anyway. */
export function remember() {
  const address = window.location.pathname;
  if (address.endsWith("/change/")) {
    const name = document.title.split(" | ")[0].slice(0, 120);
    const others = recent().filter((one) => one.address !== address);
    keep(store, [{ name, address }, ...others].slice(0, RECENT_MOST));
  }
  document.getElementById("logout-form")?.addEventListener("submit", () => localStorage.removeItem(store));
}

/* How well the letters of `typed` appear in order in `text`: -1 is not at all; beginnings of words and neighbours count. */
export function fuzzy(typed, text) {
  const wanted = typed.toLowerCase().replace(/\s+/g, "");
  const given = text.toLowerCase();
  let score = 0;
  let from = 0;
  for (const letter of wanted) {
    const at = given.indexOf(letter, from);
    if (at < 0) {
      return -1;
    }
    score += at === from ? 3 : 1;
    score += at === 0 || given[at - 1] === " " ? 2 : 0;
    from = at + 1;
  }
  return score - given.length / 100;
}

function runsFor(typed) {
  if (!shell.run || !PART_OF_ID.test(typed)) {
    return [];
  }
  if (!WHOLE_ID.test(typed)) {
    return [{ name: `Runs: ${typed}`, group: "Search", address: `${shell.runs}?q=${encodeURIComponent(typed)}` }];
  }
  const id = typed.replaceAll("-", "").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-").toLowerCase();
  return [{ name: `Run ${id}`, group: "Open", address: shell.run.replace(/[0-9a-f]{8}-[0-9a-f-]{27}/, id) }];
}

/* What the palette offers for what is typed, best first. */
function offers(typed) {
  const lately = recent().map((one) => ({ ...one, group: "Recent" }));
  if (!typed) {
    return [...lately, ...shell.pages];
  }
  const scored = [...shell.pages, ...lately].map((one) => ({ one, score: fuzzy(typed, `${one.name} ${one.group}`) }));
  const found = scored.filter(({ score }) => score >= 0).sort((a, b) => b.score - a.score);
  return [...runsFor(typed), ...found.map(({ one }) => one)];
}

class Palette {
  constructor() {
    this.shown = [];
    this.at = 0;
    this.field = make("input", {
      type: "text", role: "combobox", "aria-label": "Page, or a run's id", "aria-expanded": "true",
      "aria-controls": "palette-list", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false",
      placeholder: "Page, or a run's id", maxlength: "200",
    });
    this.list = make("ul", { id: "palette-list", role: "listbox", "aria-label": "Where to go" });
    this.said = make("p", { class: "quiet palette-said", role: "status" });
    const help = make("p", { class: "quiet palette-help" }, "↑ ↓ choose, Enter opens, Esc closes");
    this.dialog = make("dialog", { id: "palette", class: "shell-dialog", "aria-label": "Go to" });
    this.dialog.append(this.field, this.list, this.said, help);
    document.body.append(this.dialog);
    this.field.addEventListener("input", () => this.show());
    this.field.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("click", (event) => this.open([...this.list.children].indexOf(event.target.closest("li"))));
    // What lies outside the box is the dialog's own backdrop.
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
  }

  begin() {
    this.field.value = "";
    this.dialog.showModal();
    this.show();
  }

  show() {
    this.shown = offers(this.field.value.trim()).slice(0, SHOWN_MOST);
    this.list.replaceChildren(
      ...this.shown.map((one, n) =>
        make("li", { id: `palette-${n}`, role: "option" }, make("span", {}, one.name), make("small", {}, one.group)),
      ),
    );
    const count = this.shown.length;
    this.said.textContent = count ? `${count} ${count === 1 ? "place" : "places"}` : "Nothing matches.";
    this.choose(0);
  }

  choose(at) {
    this.at = at;
    [...this.list.children].forEach((row, n) => row.setAttribute("aria-selected", String(n === at)));
    const row = this.list.children[at];
    this.field.setAttribute("aria-activedescendant", row ? row.id : "");
    row?.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const count = this.shown.length;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.isComposing) {
      return;
    }
    if (step && count) {
      this.choose((this.at + step + count) % count);
    } else if (event.key === "Enter") {
      this.open(this.at);
    } else {
      return;
    }
    event.preventDefault();
  }

  open(at) {
    if (this.shown[at]) {
      window.location.assign(this.shown[at].address);
    }
  }
}

let palette = null;

export function openPalette() {
  palette ??= new Palette();
  if (palette.dialog.open) {
    palette.dialog.close();
  } else if (!document.querySelector("dialog[open]")) {
    palette.begin();
  }
}
