/* The page of one run: facts from the database, events from the stream, and the buttons between them. */

import { RunStream } from "../runs/run-stream.js";
import { byId, config, Facts } from "./run-facts.js";
import { Output, setProgress, Timeline } from "./run-timeline.js";

const READ_AGAIN_MS = 5000;
const SAY_MS = 5000;
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
  stopped: "Waits while the page is not seen",
};

const CONNECTED = new Set(["connecting", "live", "reconnecting"]);

const page = byId("run-page");
let live = null;
const facts = new Facts(() => live && live.runEnded());

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
    this.timeline = new Timeline((isAtEnd) => this.scrolled(this.timeline, isAtEnd));
    this.output = new Output((isAtEnd) => this.scrolled(this.output, isAtEnd));
    this.left = null; // the box whose end was left by scrolling
    this.waiting = []; // what came while paused, or since the last frame was drawn
    this.paused = false;
    this.follow = true;
    this.drawing = false;
    this.gaps = 0;
    this.reading = false;
    this.tickets = 0;
    this.said = 0;
    this.unsaid = 0;
    this.hasNamed = false; // the event that the address names was shown
    byId("follow").addEventListener("click", () => this.setFollow(!this.follow));
    byId("pause").addEventListener("click", () => this.setPaused(!this.paused));
    document.addEventListener("visibilitychange", () => this.turn());
  }

  start() {
    this.stream = new RunStream(config.run, {
      account: config.account,
      ticket: config.ticket ? () => this.readTicket() : undefined,
      onEvent: (event) => this.later(() => this.event(event), 1),
      onOutput: (text, { reset }) => this.later(() => this.output.add(text, reset), 0),
      onGap: (event) => this.gap(event),
      onState: () => facts.readSoon(),
      onRetriedBy: () => facts.readSoon(),
      onStatus: (status) => this.status(status),
    });
    this.turn();
  }

  /* Nothing is read while the page is not seen; what came meanwhile is read after the last event that was. */
  turn() {
    const { ended, status } = this.stream;
    if (document.hidden) {
      if (CONNECTED.has(status)) {
        this.stream.stop();
      }
    } else if (facts.ended) {
      if (!ended && !this.reading && page.dataset.live !== "none") {
        this.readLog();
      }
    } else if (!status || status === "stopped") {
      this.stream.start();
    }
  }

  /* The ticket of a connection that was given up meanwhile opens none. */
  async readTicket() {
    const mine = (this.tickets += 1);
    const ticket = await readTicket();
    return mine === this.tickets ? ticket : new Promise(() => {});
  }

  /* The log of an ended run is read as it is kept: no socket has to open for it, nor Redis to answer. */
  async readLog() {
    this.reading = !document.hidden;
    if (!this.reading) {
      return; // until it is seen
    }
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
      } while (!log.ended && log.events.length && !document.hidden);
    } catch {
      this.status("unread");
    }
    if (!this.stream.ended && page.dataset.live !== "none") {
      setTimeout(() => this.readLog(), READ_AGAIN_MS);
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
    if (!this.hasNamed && this.timeline.showNamed()) {
      this.hasNamed = true;
      this.setFollow(false);
    }
    if (this.follow) {
      this.timeline.scroll();
      this.output.scroll();
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

  /* Who leaves the end wants to read: following goes on from the button, or when the same box is at its end again. */
  scrolled(part, isAtEnd) {
    if (this.follow && !isAtEnd) {
      this.setFollow(false);
      this.left = part;
    } else if (this.left === part && isAtEnd) {
      this.setFollow(true);
    }
  }

  setFollow(follow) {
    this.left = null;
    this.follow = follow;
    byId("follow").setAttribute("aria-pressed", String(follow));
    if (follow) {
      this.timeline.scroll();
      this.output.scroll();
    }
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
      facts.readSoon();
    } else if (facts.ended && now === "reconnecting") {
      this.runEnded();
    }
  }
}

if (config.stream) {
  live = new Live();
  live.start();
  window.addEventListener("hashchange", () => live.timeline.showNamed());
}
facts.start();
