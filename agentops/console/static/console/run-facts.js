/* The facts of a run's page: read again and again while it lives, drawn where nobody is at work. */

import { draw } from "./held.js";
import { LiveLine } from "./live-line.js";

const FACTS_MS = 5000;
const FACTS_MOST_MS = 30000;
const FACTS_SOON_MS = 250;
const TICK_MS = 1000;

export const config = JSON.parse(document.getElementById("run-config").textContent);
export const byId = (id) => document.getElementById(id);

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) {
    made.className = className;
  }
  if (text !== undefined) {
    made.textContent = text;
  }
  return made;
}

/* As many pairs as before only change their texts, so that nothing moves and no selection is lost. */
function fillPairs(list, pairs) {
  const names = [...list.querySelectorAll("dt")];
  if (names.length === pairs.length) {
    const values = list.querySelectorAll("dd");
    pairs.forEach(([name, value], at) => {
      names[at].textContent = name;
      if (values[at].textContent !== value) {
        values[at].textContent = values[at].title = value;
      }
    });
    return;
  }
  list.replaceChildren(
    ...pairs.map(([name, value, tick]) => {
      const pair = element("div", tick === "worker" ? "fact fact-wide" : "fact");
      const shown = element("dd", "", value);
      shown.title = value;
      if (tick) {
        shown.dataset.tick = tick;
      }
      pair.append(element("dt", "", name), shown);
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

function fillComparison(compare) {
  const section = byId("compare");
  section.hidden = compare.rows.length === 0;
  byId("compare-left").textContent = compare.left;
  byId("compare-right").textContent = compare.right;
  byId("run-compare").replaceChildren(
    ...compare.rows.map(([what, left, right, differs]) => {
      const row = element("tr", differs ? "differs" : "");
      const head = element("th", "", what);
      head.scope = "row";
      if (differs) {
        head.append(" ", element("span", "quiet", "differs"));
      }
      row.append(head, element("td", "", left), element("td", "", right));
      return row;
    }),
  );
  for (const [id, chosen] of [
    ["compare-a", compare.a],
    ["compare-b", compare.b],
  ]) {
    byId(id).replaceChildren(
      ...compare.options.map(([fence, label]) => new Option(label, fence, fence === chosen, fence === chosen)),
    );
  }
}

function link(text, address) {
  const anchor = element("a", "", text);
  anchor.href = address;
  return anchor;
}

function fillLinks(links) {
  byId("run-links").replaceChildren(
    ...links.map(([what, text, address]) => {
      const item = element("li", "", `${what}: `);
      item.append(link(text, address));
      return item;
    }),
  );
}

function fillArtifacts(rows) {
  const artifacts = byId("run-artifacts");
  if (artifacts) {
    artifacts.replaceChildren(
      ...rows.map(([name, type, size, address]) => {
        const item = element("li");
        item.append(link(name, address), element("span", "quiet", ` ${type}, ${size} bytes`));
        return item;
      }),
    );
    artifacts.closest("section").hidden = rows.length === 0;
  }
}

function setText(id, text) {
  const target = byId(id);
  if (target && target.textContent !== text) {
    target.textContent = text;
    target.closest("section").hidden = !text;
  }
}

/* A screen reader hears a new reason once, not every second that it counts down. */
function sayWhy(why) {
  if (saidCode !== why.code) {
    saidCode = why.code;
    byId("run-why-said").textContent = why.text;
  }
}

function showWhy(why) {
  const shown = byId("run-why");
  if (shown.textContent !== why.text) {
    shown.textContent = why.text;
  }
  shown.dataset.code = why.code;
  shown.classList.toggle("why-none", !why.code);
}

function showActs(facts) {
  byId("run-cancel").hidden = !facts.may_cancel;
  byId("run-requeue").hidden = !facts.may_requeue;
  byId("run-priority").hidden = !facts.may_reprioritise;
  byId("priority").value = facts.priority;
}

function showPayload(facts) {
  setText("run-result", facts.result);
  setText("run-result-name", facts.result && facts.result_name);
  setText("run-error", facts.error);
  fillArtifacts(facts.artifacts);
}

function showTables(facts) {
  for (const name of ["attempts", "usage", "limits", "transitions", "audit"]) {
    fillRows(`run-${name}`, facts[name]);
  }
}

let saidCode = byId("run-why").dataset.code;
let leaseEnds = null; // of performance.now()

function show(facts) {
  const pill = element("span", `pill pill-${config.tones[facts.state] || "plain"}`, facts.state);
  byId("run-state").replaceChildren(pill);
  sayWhy(facts.why);
  leaseEnds = facts.lease_seconds === null ? null : performance.now() + facts.lease_seconds * 1000;
  const [links, acts, columns] = ["run-links", "run-acts", "run-columns"].map(byId);
  const [compare, payload, tables] = ["compare", "run-payload", "run-tables"].map(byId);
  const [when, why, head] = ["run-when", "run-why", "run-head"].map(byId);
  draw("when", [when, acts], () => (when.textContent = facts.when));
  draw("why", [why, acts], () => showWhy(facts.why));
  draw("head", [head, acts], () => fillPairs(head, facts.head.concat(facts.money)));
  // Each with what is below it on a screen of one column.
  draw("links", [links, acts, columns], () => fillLinks(facts.links));
  draw("acts", [acts, columns], () => showActs(facts));
  draw("compare", [compare, payload, tables], () => fillComparison(facts.compare));
  draw("payload", [payload, tables], () => showPayload(facts));
  draw("tables", [tables], () => showTables(facts));
}

/* The lease counts down between two reads, so that one that is not renewed is seen; without reads nobody knows. */
function tick(isStale) {
  const shown = document.querySelector("#run-head [data-tick=lease]");
  if (shown && leaseEnds !== null) {
    const left = Math.round((leaseEnds - performance.now()) / 1000);
    shown.textContent = left > 0 ? `${left} s` : isStale ? "not known" : "lapsed";
  }
}

export class Facts {
  constructor(onEnd) {
    this.ended = config.terminal;
    this.onEnd = onEnd;
  }

  start() {
    if (!this.ended) {
      const line = element("p", "live-line");
      byId("run-why").before(line);
      this.live = new LiveLine(line, {
        address: config.facts, everyMs: FACTS_MS, mostMs: FACTS_MOST_MS, show: (facts) => this.show(facts), stale: byId("run-page"),
      });
      this.ticking = setInterval(() => document.hidden || tick(this.live.isStale()), TICK_MS);
      this.readSoon();
    }
  }

  show(facts) {
    show(facts);
    if (facts.terminal && !this.ended) {
      this.ended = true;
      clearInterval(this.ticking);
      this.live.end("The run has ended.", { isWhole: true });
      this.onEnd();
    }
  }

  readSoon() {
    this.live?.soon(FACTS_SOON_MS);
  }
}
