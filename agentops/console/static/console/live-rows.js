/*
 * Lists that stay true while they are looked at: rows change in place, and nothing is inserted, removed or moved.
 *
 * An element with `data-live-rows`, the address of a JSON of its rows, holds the rows, each with `data-row-id`. Asked is
 * `<address>?ids=<id,id>&newer_than=<data-newest>&<data-query>`, answered
 * `{"rows": {<id>: {<name>: <text>}}, "newer": 12 or {"count": 12, "shown": "12"}}`; a text goes to the row's
 * `[data-cell=<name>]`. Cells may stand under `cells`; `state` and `tone` then make the row's `[data-state]` pill, and
 * `note` its `[data-note]`. Newer rows are said in `[data-live-new]`, which loads the page again.
 */

import { age, askJson, Refused, setText, STALE_MS, UNSEEN } from "./live-line.js";
import { make } from "./palette.js";

const READ_MS = 4000;
const READ_MOST_MS = 60000;
const SAY_MS = 10000;

function makeNewer() {
  const link = make("a", { href: window.location.href }, make("span", { "data-live-new-count": "" }), " new");
  return make("p", { class: "live-new", hidden: "" }, link);
}

class LiveRows {
  constructor(list) {
    this.list = list;
    this.readAt = Date.now();
    this.failures = 0;
    this.paused = false;
    this.ended = "";
    this.saidAt = 0;
    this.line = make("p", { class: "live-line" });
    this.text = make("span", { class: "quiet" });
    this.said = make("span", { class: "visually-hidden", role: "status" });
    this.button = make("button", { type: "button", class: "button-quiet", "aria-pressed": "false" }, "Pause updates");
    this.button.addEventListener("click", () => this.setPaused(!this.paused));
    // Said in the line above, which keeps its height: the rows stay where they are.
    this.newer = list.querySelector("[data-live-new]") || makeNewer();
    this.line.append(this.button, this.newer, this.text, this.said); // what is pressed stands before what grows
    list.before(this.line);
    this.plan();
    this.show();
    setInterval(() => this.show(), 1000);
    document.addEventListener("visibilitychange", () => document.hidden || this.plan(0));
  }

  /* Why nothing is read now, or "". */
  waits() {
    const chosen = this.list.querySelectorAll("tbody input[type=checkbox]:checked").length;
    if (this.ended || this.paused) {
      return this.ended || "Updates are paused";
    }
    if (chosen) {
      return `Updates wait while ${chosen} ${chosen === 1 ? "row is" : "rows are"} selected`;
    }
    return document.hidden ? UNSEEN : "";
  }

  plan(ms = Math.min(READ_MOST_MS, READ_MS * 2 ** this.failures)) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(), ms);
  }

  async read() {
    if (!this.waits()) {
      try {
        await this.ask();
        this.failures = 0;
      } catch (error) {
        this.failures += 1; // the age of the data says so
        this.ended = error instanceof Refused ? error.message : "";
      }
    }
    this.show();
    this.plan();
  }

  async ask() {
    const rows = [...this.list.querySelectorAll("[data-row-id]")];
    const query = new URLSearchParams(this.list.dataset.query || "");
    query.set("ids", rows.map((row) => row.dataset.rowId).join(","));
    query.set("newer_than", this.list.dataset.newest || "");
    const found = await askJson(`${this.list.dataset.liveRows}?${query}`);
    this.readAt = Date.now();
    if (!this.waits()) { // a row may have been selected meanwhile
      rows.forEach((row) => this.fill(row, found.rows[row.dataset.rowId]));
      this.tellNewer(found.newer);
    }
  }

  fill(row, facts) {
    row.classList.toggle("row-gone", !facts);
    if (!facts) {
      return;
    }
    Object.entries(facts.cells || facts).forEach(([name, text]) => {
      setText(row.querySelector(`[data-cell="${CSS.escape(name)}"]`), text ?? "");
    });
    const pill = row.querySelector("[data-state]");
    if (facts.cells && pill && pill.textContent !== facts.state) {
      pill.textContent = facts.state;
      pill.className = `pill pill-${facts.tone}`;
    }
    if (facts.cells) {
      setText(row.querySelector("[data-note]"), facts.note ?? "");
    }
  }

  tellNewer(newer) {
    const { count, shown } = typeof newer === "object" && newer ? newer : { count: newer || 0, shown: String(newer) };
    if (!count) {
      return;
    }
    setText(this.newer.querySelector("[data-live-new-count]"), shown);
    this.newer.hidden = false;
    const text = `${shown} new`;
    if (this.said.textContent !== text && Date.now() - this.saidAt > SAY_MS) {
      this.said.textContent = text;
      this.saidAt = Date.now();
    }
  }

  show() {
    const old = Date.now() - this.readAt;
    const why = this.waits() || (this.failures ? "The server does not answer" : "");
    this.list.classList.toggle("stale", old > STALE_MS);
    setText(this.text, [`Data is ${age(old)} old`, why].filter(Boolean).join(". "));
  }

  setPaused(paused) {
    this.paused = paused;
    this.button.setAttribute("aria-pressed", String(paused));
    if (!paused) {
      this.plan(0);
    }
    this.show();
  }
}

document.querySelectorAll("[data-live-rows]").forEach((list) => new LiveRows(list));
