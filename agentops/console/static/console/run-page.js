/* The page of one run: facts from the database, events from the stream. Data only ever becomes text nodes. */

import { RunStream, isVoid } from "../runs/run-stream.js";

const ROWS_MOST = 1000; // older rows leave the page; the API has them all
const OUTPUT_MOST = 400000; // characters shown; the result has them all
const FACTS_MS = 5000;
const FACTS_SOON_MS = 250;
const SAY_MS = 5000;
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

const config = JSON.parse(document.getElementById("run-config").textContent);
const byId = (id) => document.getElementById(id);
const page = byId("run-page");

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) {
    made.className = className;
  }
  if (text !== undefined) {
    made.textContent = text;
  }
  return made;
}

// -- facts ---------------------------------------------------------------------------------------

function fillPairs(list, pairs) {
  list.replaceChildren(
    ...pairs.map(([name, value]) => {
      const pair = element("div", "fact");
      pair.append(element("dt", "", name), element("dd", "", value));
      return pair;
    }),
  );
}

function fillRows(id, rows) {
  const body = byId(id);
  if (!body) {
    return;
  }
  body.replaceChildren(
    ...rows.map((cells) => {
      const row = element("tr");
      row.append(...cells.map((cell) => element("td", "", cell)));
      return row;
    }),
  );
  body.closest("section").hidden = rows.length === 0;
}

function link(text, address) {
  const anchor = element("a", "", text);
  anchor.href = address;
  return anchor;
}

function fillLinks(facts) {
  byId("run-links").replaceChildren(
    ...facts.links.map(([what, text, address]) => {
      const item = element("li", "", `${what}: `);
      item.append(link(text, address));
      return item;
    }),
  );
  const artifacts = byId("run-artifacts");
  if (artifacts) {
    artifacts.replaceChildren(
      ...facts.artifacts.map(([name, type, size, address]) => {
        const item = element("li");
        item.append(link(name, address), element("span", "quiet", ` ${type}, ${size} bytes`));
        return item;
      }),
    );
    artifacts.closest("section").hidden = facts.artifacts.length === 0;
  }
}

function setText(id, text) {
  const target = byId(id);
  if (target) {
    target.textContent = text;
    target.closest("section").hidden = !text;
  }
}

function setState(state) {
  const pill = element("span", `pill pill-${config.tones[state] || "plain"}`, state);
  byId("run-state").replaceChildren(pill);
}

function show(facts) {
  setState(facts.state);
  byId("run-when").textContent = facts.when;
  fillPairs(byId("run-head"), facts.head.concat(facts.money));
  fillRows("run-attempts", facts.attempts);
  fillRows("run-usage", facts.usage);
  fillRows("run-limits", facts.limits);
  fillRows("run-transitions", facts.transitions);
  fillRows("run-audit", facts.audit);
  fillLinks(facts);
  setText("run-result", facts.result);
  setText("run-result-name", facts.result && facts.result_name);
  setText("run-error", facts.error);
  byId("run-cancel").hidden = !facts.may_cancel;
  byId("run-requeue").hidden = !facts.may_requeue;
  byId("run-note").textContent = facts.note;
  byId("run-note").hidden = !facts.note;
}

let factsTimer = null;
let ended = config.terminal;
let live = null;

async function readFacts() {
  clearTimeout(factsTimer);
  let wait = FACTS_MS;
  try {
    const answer = await fetch(config.facts, { cache: "no-store" });
    if (answer.ok) {
      const facts = await answer.json();
      show(facts);
      ended = facts.terminal;
      if (ended && live) {
        live.runEnded();
      }
    } else {
      wait = FACTS_MS * 4;
    }
  } catch {
    wait = FACTS_MS * 2; // the server is away; the stream's status line says so
  }
  if (!ended) {
    factsTimer = setTimeout(readFacts, wait);
  }
}

function readFactsSoon() {
  clearTimeout(factsTimer);
  factsTimer = setTimeout(readFacts, FACTS_SOON_MS);
}

// -- timeline and output -------------------------------------------------------------------------

class Timeline {
  constructor() {
    this.list = byId("timeline");
    this.box = byId("timeline-box");
    this.last = null; // {kind, row, count, characters} of the newest row
    this.dropped = 0;
  }

  add(event) {
    if (this.last && this.last.kind === event.kind && MERGED.has(event.kind)) {
      this.last.count += 1;
      this.last.characters += textLength(event);
      this.last.row.lastChild.textContent = summary(event, this.last);
      setTime(this.last.row.firstChild, event);
      return;
    }
    const row = element("li", NOTABLE.has(event.kind) ? "event event-notable" : "event");
    const time = element("time", "quiet");
    setTime(time, event);
    this.last = { kind: event.kind, row, count: 1, characters: textLength(event) };
    row.dataset.id = event.id || "";
    row.dataset.kind = event.kind;
    row.append(time, element("b", "event-kind", event.kind), element("span", "event-data", ""));
    row.lastChild.textContent = summary(event, this.last);
    this.list.append(row);
    if (event.kind === "output.rollback") {
      this.strike(event);
    }
    this.trim();
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

  trim() {
    while (this.list.childElementCount > ROWS_MOST) {
      this.list.firstElementChild.remove();
      this.dropped += 1;
      byId("timeline-note").textContent = `${this.dropped} older events are not shown here.`;
    }
  }
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

class Output {
  constructor() {
    this.box = byId("output");
    this.length = 0;
  }

  add(text, reset) {
    if (reset) {
      this.box.replaceChildren();
      this.length = 0;
    }
    this.box.append(document.createTextNode(text));
    this.length += text.length;
    while (this.length > OUTPUT_MOST && this.box.childNodes.length > 1) {
      this.length -= this.box.firstChild.length;
      this.box.firstChild.remove();
    }
    byId("output-section").hidden = this.length === 0;
  }
}

function setProgress(data) {
  const { done, total } = data;
  const known = Number.isFinite(done) && Number.isFinite(total) && total > 0;
  byId("run-progress").hidden = !known;
  if (known) {
    byId("run-progress-bar").max = total;
    byId("run-progress-bar").value = Math.min(done, total);
    byId("run-progress-text").textContent = progressText(data);
  }
}

// -- live ----------------------------------------------------------------------------------------

const STATUS = {
  reading: "Reading the log…",
  connecting: "Connecting…",
  live: "Live",
  reconnecting: "Connection lost, trying again…",
  ended: "The run has ended; this is its whole log.",
  partly: "The run has ended; a part of its log is no longer kept.",
  unread: "The run has ended; its log cannot be read now, trying again…",
  none: "The run has ended; there is no log of it.",
  refused: "You may not follow this run live; the facts are refreshed every few seconds.",
  stopped: "Stopped",
};

/* For operators who are no members of the run's account: their permission buys a ticket for each connection. */
async function readTicket() {
  const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
  const answer = await fetch(config.ticket, { method: "POST", headers: { "X-CSRFToken": token }, cache: "no-store" });
  if (!answer.ok) {
    throw new Error(`no ticket: ${answer.status}`);
  }
  return (await answer.json()).ticket;
}

class Live {
  constructor() {
    this.timeline = new Timeline();
    this.output = new Output();
    this.waiting = []; // what came while paused, or since the last frame was drawn
    this.paused = false;
    this.follow = true;
    this.drawing = false;
    this.gaps = 0;
    this.reading = false;
    this.said = 0;
    this.unsaid = 0;
    byId("follow").addEventListener("click", () => this.setFollow(!this.follow));
    byId("pause").addEventListener("click", () => this.setPaused(!this.paused));
    // Who scrolls up wants to read: following goes on from the button, or at the end of the list.
    this.timeline.box.addEventListener("wheel", (event) => event.deltaY < 0 && this.setFollow(false), { passive: true });
  }

  start() {
    this.stream = new RunStream(config.run, {
      account: config.account,
      ticket: config.ticket ? readTicket : undefined,
      onEvent: (event) => this.later(() => this.event(event), 1),
      onOutput: (text, { reset }) => this.later(() => this.output.add(text, reset), 0),
      onGap: (event) => this.gap(event),
      onState: () => readFactsSoon(),
      onRetriedBy: () => readFactsSoon(),
      onStatus: (status) => this.status(status),
    });
    if (ended) {
      this.readLog();
    } else {
      this.stream.start();
    }
  }

  /* The log of an ended run is read as it is kept: no socket has to open for it, nor Redis to answer. */
  async readLog() {
    this.reading = true;
    this.status("reading");
    try {
      let log;
      do {
        const answer = await fetch(`${config.events}?after=${this.stream.lastId}`, { cache: "no-store" });
        if (!answer.ok) {
          this.status(answer.status === 404 ? "none" : "unread");
          break;
        }
        log = await answer.json();
        this.stream.take(log.events, log.ended);
      } while (!log.ended && log.events.length);
    } catch {
      this.status("unread");
    }
    if (!this.stream.ended && page.dataset.live !== "none") {
      setTimeout(() => this.readLog(), FACTS_MS);
    }
  }

  /* The facts say that the run has ended: what has no connection to hear it from reads the log. */
  runEnded() {
    if (!this.stream.ended && this.stream.status !== "live" && !this.reading) {
      this.stream.stop();
      this.readLog();
    }
  }

  gap(event) {
    this.gaps += 1;
    if (!event.id) {
      this.later(() => this.timeline.add({ kind: "gap", ...event }), 1);
    }
  }

  later(draw, events) {
    this.waiting.push(draw);
    this.unsaid += events;
    if (this.paused) {
      byId("pause").textContent = `Go on (${this.waiting.length} new)`;
    } else if (!this.drawing) {
      this.drawing = true;
      requestAnimationFrame(() => this.draw());
    }
  }

  draw() {
    this.drawing = false;
    if (this.paused) {
      return;
    }
    this.waiting.splice(0).forEach((draw) => draw());
    if (this.follow) {
      this.timeline.box.scrollTop = this.timeline.box.scrollHeight;
      this.output.box.scrollTop = this.output.box.scrollHeight;
    }
    this.say();
  }

  event(event) {
    this.timeline.add(event);
    if (event.kind === "run.progress") {
      setProgress(event.data || {});
    } else if (event.kind === "output.rollback") {
      setProgress({}); // that of an earlier attempt
    }
  }

  /* A screen reader hears a summary, at most every five seconds, not each of hundreds of events. */
  say() {
    const wait = this.said + SAY_MS - Date.now();
    clearTimeout(this.sayTimer);
    if (wait > 0) {
      this.sayTimer = setTimeout(() => this.say(), wait);
    } else if (this.unsaid) {
      const last = this.timeline.last ? this.timeline.last.kind : "";
      byId("live-summary").textContent = `${this.unsaid} new events, last: ${last}`;
      this.said = Date.now();
      this.unsaid = 0;
    }
  }

  setFollow(follow) {
    this.follow = follow;
    byId("follow").setAttribute("aria-pressed", String(follow));
  }

  setPaused(paused) {
    this.paused = paused;
    byId("pause").setAttribute("aria-pressed", String(paused));
    byId("pause").textContent = paused ? "Go on" : "Pause";
    if (!paused) {
      this.draw();
    }
  }

  status(now) {
    const status = now === "ended" && this.gaps ? "partly" : now;
    byId("live-status").textContent = STATUS[status] || status;
    page.dataset.live = status;
    if (now === "ended") {
      readFactsSoon();
    } else if (ended && now === "reconnecting") {
      this.runEnded();
    }
  }
}

if (config.stream) {
  live = new Live();
  live.start();
}
if (!ended) {
  factsTimer = setTimeout(readFacts, FACTS_MS);
}
