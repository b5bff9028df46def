/* The timeline of a run's page and its output. What a model or an agent said only ever becomes text nodes. */

import { isVoid } from "../runs/run-stream.js";
import { byId, element } from "./run-facts.js";
import { isHeld } from "./held.js";

const ROWS_MOST = 1000; // older rows leave the page; the API has them all
const OUTPUT_MOST = 400000; // characters shown; the result has them all
const MERGED = new Set(["output.delta", "run.progress"]);
const NOTABLE = new Set([
  "gap",
  "output.rollback",
  "run.retrying",
  "run.retaken",
  "run.handed_back",
  "budget.warning",
  "budget.extended",
]);
const ANCHOR = "event-";
const AT_END = 1; // pixels: positions may be parts of one
const SAME = 0.5;

/*
 * A box that may follow its end. Whoever leaves the end, by wheel, finger, keys or bar alike, is told of by
 * `onScroll(isAtEnd)`; scrolls that the script made, or that came of its changes, are not.
 */
class Followed {
  constructor(box, onScroll) {
    this.box = box;
    this.at = box.scrollTop;
    this.isMoved = false;
    new ResizeObserver(() => this.moved()).observe(box);
    box.addEventListener("scroll", () => this.scrolled(onScroll), { passive: true });
  }

  scrolled(onScroll) {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    const isOurs = this.isMoved || Math.abs(scrollTop - this.at) < SAME;
    this.isMoved = false;
    this.at = scrollTop;
    if (!isOurs) {
      onScroll(scrollHeight - clientHeight - scrollTop <= AT_END);
    }
  }

  /* Rows came or went above what is shown, or the box has another size: the browser may move the rest. */
  moved() {
    this.isMoved = true;
    requestAnimationFrame(() => requestAnimationFrame(() => (this.isMoved = false)));
  }

  end() {
    if (!isHeld(this.box)) {
      this.box.scrollTop = this.box.scrollHeight;
      this.at = this.box.scrollTop;
    }
  }
}

export class Timeline {
  constructor(onScroll) {
    this.list = byId("timeline");
    this.box = byId("timeline-box");
    this.followed = new Followed(this.box, onScroll);
    this.kinds = byId("kinds");
    this.counts = new Map(); // kind → rows
    this.last = null; // {kind, row, count, characters} of the newest row
    this.dropped = 0;
    this.kinds.addEventListener("change", () => this.filter());
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("click", (event) => this.clicked(event));
  }

  add(event) {
    if (this.last && this.last.kind === event.kind && MERGED.has(event.kind)) {
      this.last.count += 1;
      this.last.characters += textLength(event);
      this.last.row.querySelector(".event-data").textContent = summary(event, this.last);
      this.last.row.dataset.last = event.id || "";
      setTime(this.last.row.firstChild, event);
      return;
    }
    const row = element("li", NOTABLE.has(event.kind) ? "event event-notable" : "event");
    const time = element("time", "quiet");
    setTime(time, event);
    this.last = { kind: event.kind, row, count: 1, characters: textLength(event) };
    row.dataset.id = row.dataset.last = event.id || "";
    row.dataset.kind = event.kind;
    row.append(time, element("b", "event-kind", event.kind), element("span", "event-data", ""));
    row.lastChild.textContent = summary(event, this.last);
    if (event.id) {
      row.append(linkTo(event.id));
    }
    row.hidden = Boolean(this.kinds.value) && this.kinds.value !== event.kind;
    this.list.append(row);
    this.count(event.kind);
    if (event.kind === "output.rollback") {
      this.strike(event);
    }
    this.trim();
  }

  /* Each kind that was seen can be shown alone. */
  count(kind) {
    if (!this.counts.has(kind)) {
      this.kinds.append(new Option(kind, kind));
    }
    this.counts.set(kind, (this.counts.get(kind) || 0) + 1);
  }

  filter() {
    const chosen = this.kinds.value;
    this.followed.moved();
    for (const row of this.list.children) {
      row.hidden = Boolean(chosen) && row.dataset.kind !== chosen;
    }
    const shown = chosen ? this.counts.get(chosen) || 0 : this.list.childElementCount;
    this.say(chosen ? `${shown} of ${this.list.childElementCount} rows: only ${chosen}.` : "");
  }

  say(text) {
    const older = this.dropped ? `${this.dropped} older events are not shown here. ` : "";
    byId("timeline-note").textContent = older + text;
  }

  /* What a rollback takes back from the output stays in the list, crossed out. */
  strike(event) {
    const after = (event.data && event.data.after) || "";
    for (const row of this.list.children) {
      if (row.dataset.kind === "output.delta" && isVoid(row.dataset.id, event.id, after)) {
        row.classList.add("event-void");
      }
    }
  }

  /* Older rows go, but not while somebody is among them: they would move under the pointer. */
  trim() {
    const most = isHeld(this.box) ? ROWS_MOST * 2 : ROWS_MOST;
    if (this.list.childElementCount <= most) {
      return;
    }
    this.followed.moved();
    while (this.list.childElementCount > ROWS_MOST) {
      const row = this.list.firstElementChild;
      this.counts.set(row.dataset.kind, this.counts.get(row.dataset.kind) - 1);
      row.remove();
      this.dropped += 1;
    }
    this.say("");
  }

  scroll() {
    this.followed.end();
  }

  /* Show the event that the address names, if it is there. Returns whether it is. */
  showNamed() {
    const id = decodeURIComponent(window.location.hash.slice(1));
    if (!id.startsWith(ANCHOR)) {
      return false;
    }
    const row = this.find(id.slice(ANCHOR.length));
    if (!row) {
      return false;
    }
    this.list.querySelectorAll(".event-named").forEach((named) => named.classList.remove("event-named"));
    row.hidden = false;
    row.classList.add("event-named");
    row.scrollIntoView({ block: "center" });
    return true;
  }

  /* A row that stands for many events of a kind has the first and the last of them. */
  find(id) {
    return [...this.list.children].find(
      (row) => row.dataset.id === id || (isAtMost(row.dataset.id, id) && isAtMost(id, row.dataset.last)),
    );
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) {
      return;
    }
    const links = [...this.list.querySelectorAll("li:not([hidden]) .event-link")];
    if (!links.length) {
      return;
    }
    event.preventDefault();
    const at = links.indexOf(document.activeElement);
    const from = at >= 0 ? at + step : step > 0 && step < 2 ? 0 : links.length - 1;
    links[Math.max(0, Math.min(links.length - 1, step === -Infinity ? 0 : from))].focus();
  }

  clicked(event) {
    const anchor = event.target.closest(".event-link");
    if (!anchor) {
      return;
    }
    event.preventDefault();
    window.history.replaceState(null, "", anchor.hash);
    this.showNamed();
    const said = `Link to the event ${anchor.dataset.id}`;
    if (navigator.clipboard) {
      navigator.clipboard.writeText(anchor.href).then(
        () => this.say(`${said} copied.`),
        () => this.say(`${said} is in the address bar.`),
      );
    } else {
      this.say(`${said} is in the address bar.`); // browsers keep the clipboard for https
    }
  }
}

function linkTo(id) {
  const anchor = element("a", "event-link", "#");
  anchor.href = `#${ANCHOR}${id}`;
  anchor.dataset.id = id;
  anchor.tabIndex = -1; // a thousand of them: the arrow keys lead there
  anchor.title = `Copy a link to the event ${id}`;
  anchor.setAttribute("aria-label", `Copy a link to the event ${id}`);
  return anchor;
}

function isAtMost(left, right) {
  const [a, b] = left.split("-").map(Number);
  const [x, y] = right.split("-").map(Number);
  return a < x || (a === x && b <= y);
}

function textLength(event) {
  return event.data && typeof event.data.text === "string" ? event.data.text.length : 0;
}

function summary(event, merged) {
  const data = event.data || {};
  if (event.kind === "output.delta") {
    return `${merged.characters} characters in ${merged.count} events`;
  }
  if (event.kind === "run.progress") {
    return progressText(data);
  }
  if (event.kind === "output.rollback") {
    return `The text above${data.after ? ` since ${data.after}` : ""} is void: a new attempt begins anew.`;
  }
  if (event.kind === "run.retrying" || event.kind === "run.retaken") {
    return retryText(data);
  }
  if (event.kind === "budget.warning") {
    return `${credits(data.spent)} of ${credits(data.budget)} reserved credits are spent.`;
  }
  if (event.kind === "budget.extended") {
    return `${credits(data.spent)} credits are spent; ${credits(data.budget)} are reserved now, not ${credits(data.from)}.`;
  }
  if (event.kind === "run.scheduled") {
    return `Begins ${whenText(data)}.`;
  }
  if (event.kind === "run.queued" && data.from) {
    return `Its priority was changed from ${data.from} to ${data.priority}. ${data.reason || ""}`.trim();
  }
  if (event.kind === "run.handed_back") {
    return `${data.reason || "Handed back"}; the attempt does not count.`;
  }
  const text = JSON.stringify(data);
  return text === "{}" ? "" : text.length > 600 ? `${text.slice(0, 600)}…` : text;
}

/* Micro-units as credits. */
function credits(amount) {
  return (Number(amount) / 1e6).toLocaleString("en", { maximumFractionDigits: 6 });
}

function setTime(target, event) {
  const at = String(event.at || "");
  const moment = new Date(at);
  const iso = Number.isNaN(moment.getTime()) ? "" : moment.toISOString();
  const whole = momentText(at);
  target.textContent = iso ? iso.slice(11, 23) : at;
  target.dateTime = at;
  target.title = event.id ? `${event.id}, ${whole}` : whole;
}

/* "2026-11-29 21:03:11 UTC", or the text itself where it is no time. */
function momentText(at) {
  const moment = new Date(String(at));
  if (Number.isNaN(moment.getTime())) {
    return String(at);
  }
  const iso = moment.toISOString();
  return `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`;
}

function whenText(data) {
  const parts = [];
  if (data.not_before) {
    parts.push(`not before ${momentText(data.not_before)}`);
  }
  if (data.blocked_by_session) {
    parts.push(`when its session ${data.blocked_by_session} is free`);
  }
  return parts.join(" and ") || "at once";
}

function retryText(data) {
  const error = data.error || {};
  const why = [error.class, error.message].filter(Boolean).join(": ");
  return `Attempt ${data.attempt} of ${data.of} begins ${whenText(data)}. ${why}`.trim();
}

function progressText({ done, total, message }) {
  return [`${done} of ${total}`, String(message || "").trim()].filter(Boolean).join(" · ");
}

export class Output {
  constructor(onScroll) {
    this.box = byId("output");
    this.followed = new Followed(this.box, onScroll);
    this.length = 0;
  }

  add(text, reset) {
    if (reset) {
      this.followed.moved();
      this.box.replaceChildren();
      this.length = 0;
    }
    this.box.append(document.createTextNode(text));
    this.length += text.length;
    while (this.length > OUTPUT_MOST && this.box.childNodes.length > 1) {
      this.followed.moved();
      this.length -= this.box.firstChild.length;
      this.box.firstChild.remove();
    }
    if (this.length) {
      byId("output-section").hidden = false;
    }
  }

  scroll() {
    this.followed.end();
  }
}

export function setProgress(data) {
  const { done, total } = data;
  const known = Number.isFinite(done) && Number.isFinite(total) && total > 0;
  byId("run-progress").hidden = !known;
  if (known) {
    byId("run-progress-bar").max = total;
    byId("run-progress-bar").value = Math.min(done, total);
    byId("run-progress-text").textContent = progressText(data);
  }
}
