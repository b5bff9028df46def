/*
 * The overview: numbers pushed over /ws/ops/, or read every few seconds where no socket can be opened; charts and the
 * tables below are read less often. Nothing is asked for while the tab is hidden or updates are paused.
 */

import { Chart } from "./charts.js";
import { draw } from "./held.js";
import { askJson, Refused, setText, UNSEEN } from "./live-line.js";
import { make } from "./palette.js";

const BACKOFF_FIRST_MS = 500;
const BACKOFF_MOST_MS = 15000;
const READ_MS = 5000;
const STALE_MS = 10000;
const SLOW_MS = 10000;

const page = document.getElementById("overview");
const age = document.getElementById("overview-age");
const pause = document.getElementById("overview-pause");
const parts = document.getElementById("overview-parts");
const list = document.getElementById("health-problems");
const controls = document.getElementById("controls");
const charts = [...page.querySelectorAll("figure.chart")].map((figure) => new Chart(figure));
let failures = 0;
let shownAt = Date.now();
let socket = null;
let isSignedOut = false;
let said = "";

function waits() {
  if (isSignedOut) {
    return "You are signed out";
  }
  if (pause.getAttribute("aria-pressed") === "true") {
    return "Updates are paused";
  }
  return document.hidden ? UNSEEN : "";
}

/* What stands below the problems, and is pressed: a problem that comes or goes moves it. */
const below = [page.querySelector(".cards"), ...page.querySelectorAll("figure.chart details"), parts, controls];
const PRESSED = "#health-problems, .card, summary, .facts a, #overview-parts a, #controls";

function showHealth({ healthy, sentence, problems }) {
  document.getElementById("health").classList.toggle("health-bad", !healthy);
  setText(document.getElementById("health-sentence"), sentence);
  // The sentence is news at once; the list waits for whoever is about to press something. A pointer may rest elsewhere.
  draw("problems", [list, ...below], () => {
    const told = JSON.stringify(problems);
    if (told !== said && !waits()) {
      said = told;
      list.replaceChildren(...problems.map(({ code, text, advice, address }) => (
        make("li", { "data-code": code }, make("a", { href: address }, text), " ", make("span", {}, advice))
      )));
    }
  }, [...page.querySelectorAll(PRESSED)]);
}

function show(numbers) {
  if (waits()) {
    return;
  }
  shownAt = Date.now();
  page.querySelectorAll("[data-number]").forEach((target) => {
    const value = numbers[target.dataset.number];
    if (value !== undefined) {
      setText(target, value);
    }
  });
  (numbers.queued || []).forEach(({ priority, count, oldest_wait: wait }) => {
    const row = page.querySelector(`[data-priority="${CSS.escape(priority)}"]`);
    if (row) {
      setText(row.querySelector("[data-count]"), count);
      setText(row.querySelector("[data-wait]"), wait);
    }
  });
  const dead = page.querySelector("[data-number=dead_letters]");
  if (dead) {
    dead.closest(".card").classList.toggle("card-bad", dead.textContent !== "0");
  }
  showHealth(numbers);
  tellAge();
}

function connect() {
  if (socket || waits()) {
    return;
  }
  const address = new URL("/ws/ops/", window.location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const mine = socket = new WebSocket(address);
  mine.onmessage = (message) => {
    const frame = JSON.parse(message.data);
    if (frame.type === "numbers" && socket === mine) {
      failures = 0;
      show(frame);
    }
  };
  mine.onclose = (closing) => {
    if (socket !== mine) {
      return;
    }
    socket = null;
    isSignedOut ||= closing.code === 4401;
    failures += 1;
    const most = Math.min(BACKOFF_MOST_MS, BACKOFF_FIRST_MS * 2 ** Math.min(failures, 8));
    setTimeout(connect, 100 + Math.random() * most);
    tellAge();
  };
}

async function ask(address) {
  try {
    return await askJson(address);
  } catch (error) {
    isSignedOut ||= error instanceof Refused && error.isSignedOut;
    throw error;
  }
}

async function readNumbers() {
  if (!waits() && failures) {
    try {
      show(await ask(page.dataset.numbers));
    } catch {
      // The age of the numbers says that the server is away.
    }
  }
  setTimeout(readNumbers, READ_MS);
}

function showParts(html) {
  parts.replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
}

async function readSlow() {
  if (!waits() && charts.length) {
    try {
      const data = await ask(page.dataset.charts);
      charts.forEach((chart) => chart.show(data));
    } catch {
      charts.forEach((chart) => chart.fail("The server does not answer: this is what it said last."));
    }
  }
  if (!waits()) {
    try {
      const { html } = await ask(page.dataset.parts);
      draw("parts", [parts, controls], () => waits() || showParts(html));
    } catch {
      // As above.
    }
  }
}

function tellAge() {
  const old = Date.now() - shownAt;
  page.classList.toggle("stale", old > STALE_MS);
  setText(age, [`Numbers are ${Math.round(old / 1000)} s old`, waits()].filter(Boolean).join(". "));
}

function turn() {
  if (waits()) {
    const left = socket;
    socket = null;
    left?.close();
  } else {
    connect();
    readSlow();
  }
  tellAge();
}

pause.hidden = false;
pause.addEventListener("click", () => {
  pause.setAttribute("aria-pressed", String(pause.getAttribute("aria-pressed") !== "true"));
  turn();
});
document.addEventListener("visibilitychange", turn);
setInterval(tellAge, 1000);
setInterval(readSlow, SLOW_MS);
if (charts.length) {
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  charts.forEach((chart) => chart.show(data));
}
connect();
setTimeout(readNumbers, READ_MS);
