/* The overview: numbers pushed over /ws/ops/, or read every few seconds where no socket can be opened. */

const BACKOFF_FIRST_MS = 500;
const BACKOFF_MOST_MS = 15000;
const READ_MS = 5000;
const STALE_MS = 10000;

const page = document.getElementById("overview");
const age = document.getElementById("overview-age");
let failures = 0;
let shownAt = Date.now();
let readTimer = null;

function show(numbers) {
  shownAt = Date.now();
  page.querySelectorAll("[data-number]").forEach((target) => {
    const value = numbers[target.dataset.number];
    if (value !== undefined && target.textContent !== String(value)) {
      target.textContent = value;
    }
  });
  (numbers.queued || []).forEach(({ priority, count, oldest_wait: wait }) => {
    const row = page.querySelector(`[data-priority="${CSS.escape(priority)}"]`);
    if (row) {
      row.querySelector("[data-count]").textContent = count;
      row.querySelector("[data-wait]").textContent = wait;
    }
  });
  const dead = page.querySelector("[data-number=dead_letters]");
  if (dead) {
    dead.closest(".card").classList.toggle("card-bad", dead.textContent !== "0");
  }
}

function connect() {
  const address = new URL("/ws/ops/", window.location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(address);
  socket.onmessage = (message) => {
    const frame = JSON.parse(message.data);
    if (frame.type === "numbers") {
      failures = 0;
      clearTimeout(readTimer);
      readTimer = null;
      show(frame);
    }
  };
  socket.onclose = (closing) => {
    if (closing.code === 4401) {
      age.textContent = "You are signed out.";
      return;
    }
    failures += 1;
    const most = Math.min(BACKOFF_MOST_MS, BACKOFF_FIRST_MS * 2 ** Math.min(failures, 8));
    setTimeout(connect, 100 + Math.random() * most);
    readTimer = readTimer || setTimeout(read, READ_MS);
  };
}

async function read() {
  readTimer = setTimeout(read, READ_MS);
  try {
    const answer = await fetch(page.dataset.numbers, { cache: "no-store" });
    if (answer.ok && answer.headers.get("Content-Type").startsWith("application/json")) {
      show(await answer.json());
    }
  } catch {
    // The age of the numbers says that the server is away.
  }
}

setInterval(() => {
  const old = Date.now() - shownAt;
  page.classList.toggle("stale", old > STALE_MS);
  const text = old > STALE_MS ? `Numbers are ${Math.round(old / 1000)} s old` : "Live";
  if (age.textContent !== text) {
    age.textContent = text;
  }
}, 1000);

connect();
