/*
 * Reading again and again what a page shows, and a line that tells how old it is. Nothing is read while the page is not
 * seen; a lost session, and a server that is away, are told to everybody.
 */

import { make } from "./palette.js";

const ANSWER_MS = 10000;
const TICK_MS = 1000;
export const STALE_MS = 15000;
const REFUSED = "You are signed out, or may not see this any more";
export const UNSEEN = "Updates wait while the page is not seen";

/* The answer is the sign-in page's address, or a 403. */
export class Refused extends Error {
  constructor(status) {
    super(REFUSED);
    this.isSignedOut = status === 0;
  }
}

export async function ask(address) {
  const answer = await fetch(address, {
    cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(ANSWER_MS),
  });
  if (answer.type === "opaqueredirect" || answer.status === 403) {
    throw new Refused(answer.status);
  }
  if (!answer.ok) {
    throw new Error(`The server answers with an error, ${answer.status}`);
  }
  return answer;
}

export async function askJson(address) {
  return (await ask(address)).json();
}

export function age(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} m ${seconds % 60} s`;
}

export function setText(target, text) {
  if (target && target.textContent !== String(text)) {
    target.textContent = text;
  }
}

export class LiveLine {
  /* `show` takes each answer, and may be async: what it throws counts as no answer. `stale` is dimmed with old data. */
  constructor(line, { address, everyMs, mostMs, show, stale }) {
    Object.assign(this, { line, address, everyMs, mostMs, show, stale });
    this.readAt = Date.now();
    this.failures = 0;
    this.failure = "";
    this.ended = "";
    this.asked = 0;
    this.text = make("span", { class: "quiet" });
    this.said = make("span", { class: "visually-hidden", role: "status" });
    line.replaceChildren(this.text, this.said);
    this.ticking = setInterval(() => this.tell(), TICK_MS);
    document.addEventListener("visibilitychange", () => this.turn());
    this.plan();
    this.tell();
  }

  /* Why nothing is read now, or "". */
  waits() {
    return this.ended || (document.hidden ? UNSEEN : "");
  }

  isStale() {
    return Date.now() - this.readAt > STALE_MS;
  }

  plan(ms = Math.min(this.mostMs, this.everyMs * 2 ** this.failures)) {
    clearTimeout(this.timer);
    if (!this.waits()) {
      this.timer = setTimeout(() => this.read(), ms);
    }
  }

  turn() {
    this.plan(0);
    this.tell();
  }

  /* Something has happened: read it, even once more after the end. */
  soon(ms) {
    clearTimeout(this.timer);
    if (!document.hidden) {
      this.timer = setTimeout(() => this.read(), ms);
    }
  }

  /* Of two reads only the later one's answer counts. */
  async read() {
    const mine = (this.asked += 1);
    try {
      const found = await askJson(this.address);
      if (mine === this.asked && !document.hidden) {
        this.readAt = Date.now();
        await this.show(found);
        this.failures = 0;
      }
    } catch (error) {
      if (mine === this.asked) {
        this.fail(error);
      }
    }
    if (mine === this.asked) {
      this.plan();
      this.tell();
    }
  }

  fail(error) {
    if (error instanceof Refused) {
      this.end(error.message);
    } else if (!document.hidden) { // what was asked before may have been cut off
      this.failures += 1;
      this.failure = error.message.startsWith("The server") ? error.message : "The server does not answer";
    }
  }

  /* Nothing is read any more; the sentence stands instead of the age where the data is all there is. */
  end(sentence, { isWhole = false } = {}) {
    this.ended = sentence;
    this.isWhole = isWhole;
    clearTimeout(this.timer);
    if (isWhole) {
      clearInterval(this.ticking);
    }
    this.tell();
  }

  tell() {
    const trouble = this.isWhole ? "" : this.ended || (this.failures ? this.failure : "");
    const old = this.isWhole ? "" : `Data is ${age(Date.now() - this.readAt)} old`;
    setText(this.text, [old, this.waits() || trouble].filter(Boolean).join(". "));
    setText(this.said, trouble);
    this.line.classList.toggle("live-line-bad", Boolean(trouble));
    this.stale?.classList.toggle("stale", !this.isWhole && this.isStale());
  }
}
