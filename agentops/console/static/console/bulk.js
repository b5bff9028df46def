/* A bulk operation that is not over: its numbers are read again and again; at its end the whole page is drawn anew. */

import { draw } from "./held.js";
import { ask, LiveLine, setText } from "./live-line.js";
import { make } from "./palette.js";

const READ_MS = 1000;
const READ_MOST_MS = 15000;

const content = document.getElementById("content");
const page = document.getElementById("bulk");
const acts = document.getElementById("bulk-acts");
const bar = document.getElementById("bulk-bar");
const problem = document.getElementById("bulk-problem");
const state = document.querySelector("#bulk-state .pill");
const told = document.getElementById("bulk-told");

function showProblem(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

function isTyped() {
  return [...content.querySelectorAll("input:not([type=hidden])")].some((field) => field.value !== field.defaultValue);
}

/* The pointer may rest on the page, but not on what can be pressed. */
function drawWhole(html) {
  const pressed = [...content.querySelectorAll("a, button, input, label, select")];
  draw("page", [content], () => {
    if (!isTyped()) { // what was typed is not taken away: the line says that it is over
      const drawn = new DOMParser().parseFromString(html, "text/html").getElementById("content");
      content.replaceChildren(...drawn.childNodes);
    }
  }, pressed);
}

async function show(now) {
  page.querySelectorAll("[data-number]").forEach((target) => setText(target, now[target.dataset.number]));
  bar.max = Math.max(1, now.total);
  bar.value = now.acted;
  draw("problem", [problem, acts], () => showProblem(now.problem));
  if (state.textContent !== now.state) {
    state.textContent = now.state;
    told.textContent = `${now.state}: ${now.acted} of ${now.total}`;
  }
  if (!now.is_live) {
    const html = await (await ask(window.location.href)).text();
    live.end("It is over; its numbers are final.", { isWhole: true });
    live.line.append(make("a", { href: window.location.href }, "Show its items as they are now"));
    drawWhole(html);
  }
}

const live = new LiveLine(document.getElementById("bulk-line"), {
  address: page.dataset.progress, everyMs: READ_MS, mostMs: READ_MOST_MS, show, stale: page,
});
