/*
 * RunStream: the events of one run, each once and in order, over a WebSocket or, where none can be opened, over SSE.
 *
 *   import { RunStream } from "/static/runs/run-stream.js";
 *   const stream = new RunStream("0193a…", { onEvent: (event) => console.log(event.kind, event.data) });
 *   stream.start();
 *
 * Options (all optional):
 *   after        id of the last event already seen; the stream goes on after it
 *   onEvent      (event) every event once: {id, run, at, kind, data}
 *   onState      (state) the run's state, from the greeting and from the lifecycle events
 *   onOutput     (text, {reset}) output text as it grows; after a rollback the whole text with reset: true
 *   onGap        (event) events before this one are no longer kept
 *   onRetriedBy  (runId) the run was requeued as another one
 *   onStatus     ("connecting" | "live" | "reconnecting" | "ended" | "refused" | "stopped")
 *   base         address of the server, default: this page's
 *   key          an API key, sent as a subprotocol or header, never in an address
 *   account      name of the account to act for, with a browser session
 *   ticket       async () => a single-use ticket (POST /api/v1/runs/<id>/ticket); asked before every socket. It opens
 *                sockets only, so there is no SSE to fall back on
 *   transport    "auto" (default), "websocket" or "sse"
 *
 * After the terminal event the stream ends by itself. `stop()` ends it early; it never cancels the run; `cancel()` does.
 * `take(events, ended)` gives it events that were read in another way, such as the log of an ended run.
 */

const ACK_EVENTS = 32;
const ACK_MS = 1000;
const PING_MS = 20000;
const SILENCE_MS = 50000; // no frame for this long: the connection is taken for dead
const BACKOFF_FIRST_MS = 300;
const BACKOFF_MOST_MS = 15000;
const SOCKET_TRIES = 3; // failed openings in a row before SSE is tried
const CLOSE_REFUSED = new Set([4401, 4403, 4404]);
const HTTP_REFUSED = new Set([401, 403, 404]);
const LIFECYCLE = {
  "run.queued": "queued",
  "run.scheduled": "scheduled",
  "run.started": "running",
  "run.waiting": "waiting",
  "run.handed_back": "queued",
  "run.retaken": "scheduled",
  "run.succeeded": "succeeded",
  "run.failed": "failed",
  "run.cancelled": "cancelled",
  "run.interrupted": "interrupted",
};
const TERMINAL = new Set(["succeeded", "failed", "cancelled", "interrupted"]);

/* The state a lifecycle event leads to; undefined for every other event. A retry waits only where it says until when. */
export function stateAfter(event) {
  if (event.kind === "run.retrying") {
    return event.data && event.data.not_before ? "scheduled" : "queued";
  }
  return LIFECYCLE[event.kind];
}

/* An event id "<fence>-<seq>" as two numbers; null for anything else. */
export function parseId(id) {
  const match = /^(\d{1,15})-(\d{1,15})$/.exec(id || "");
  return match ? [Number(match[1]), Number(match[2])] : null;
}

/* Below 0, 0 or above 0, as a is before, the same as, or after b. An empty id is before all. */
export function compareIds(a, b) {
  const [left, right] = [parseId(a) || [-1, -1], parseId(b) || [-1, -1]];
  return left[0] - right[0] || left[1] - right[1];
}

/* Whether a rollback voids an event: one of an earlier fence, after the id that it keeps (empty: all of them). */
export function isVoid(id, rollbackId, after) {
  const fence = (parseId(rollbackId) || [Infinity])[0];
  const own = (parseId(id) || [0])[0];
  return own < fence && !(after && compareIds(id, after) <= 0);
}

/* The output text of a run: pieces by event id, so that a rollback can take some of them back. */
export class OutputText {
  constructor() {
    this.pieces = [];
  }

  add(id, text) {
    this.pieces.push({ id, text });
  }

  /* Take back what the rollback of that id voids. */
  rollback(id, after) {
    this.pieces = this.pieces.filter((piece) => !isVoid(piece.id, id, after));
  }

  toString() {
    return this.pieces.map((piece) => piece.text).join("");
  }
}

export class RunStream {
  constructor(runId, options = {}) {
    this.runId = String(runId);
    this.options = options;
    this.lastId = options.after || "";
    this.output = new OutputText();
    this.ended = false;
    this.stopped = false;
    this.transport = options.transport || "auto";
    this.failures = 0;
    this.socketFailures = 0;
    this.unacked = 0;
    this.status = "";
    this.ticket = "";
  }

  start() {
    this.stopped = false;
    this._connect();
    return this;
  }

  stop() {
    this._finish("stopped");
  }

  /* Ask the server to cancel the run. Returns whether a socket was there to carry it. */
  cancel() {
    return this._send({ type: "cancel" });
  }

  /* Take events that were read in another way, as if they had come; with `ended`, the stream ends after them. */
  take(events, ended) {
    events.forEach((event) => this._frame(event));
    if (ended) {
      this._end();
    }
  }

  _tell(name, ...args) {
    const callback = this.options[name];
    if (callback) {
      callback(...args);
    }
  }

  _setStatus(status) {
    if (status !== this.status) {
      this.status = status;
      this._tell("onStatus", status);
    }
  }

  _finish(status) {
    this.stopped = true;
    this._clear();
    this._setStatus(status);
  }

  _clear() {
    clearTimeout(this.retryTimer);
    clearTimeout(this.ackTimer);
    clearInterval(this.pingTimer);
    this.ackTimer = null;
    const { socket, abort } = this;
    this.socket = null;
    this.abort = null;
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close(1000);
    }
    if (abort) {
      abort.abort();
    }
  }

  _connect() {
    if (this.stopped || this.ended) {
      return;
    }
    this._setStatus(this.failures ? "reconnecting" : "connecting");
    const mayFall = this.transport === "auto" && !this.options.ticket;
    const sse = this.transport === "sse" || (mayFall && this.socketFailures >= SOCKET_TRIES);
    const open = sse ? () => this._readSse() : () => this._openSocket();
    if (sse || !this.options.ticket) {
      open();
      return;
    }
    this.options.ticket().then(
      (ticket) => {
        this.ticket = ticket;
        if (!this.stopped) {
          open();
        }
      },
      () => this._reconnect(),
    );
  }

  /* Full jitter: many viewers that lost one server do not come back in one moment. */
  _reconnect() {
    this._clear();
    if (this.stopped) {
      return;
    }
    this.failures += 1;
    const most = Math.min(BACKOFF_MOST_MS, BACKOFF_FIRST_MS * 2 ** Math.min(this.failures, 10));
    this._setStatus("reconnecting");
    this.retryTimer = setTimeout(() => this._connect(), 50 + Math.random() * most);
  }

  _address(path, socket) {
    const url = new URL(path, this.options.base || window.location.href);
    if (socket) {
      url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    }
    if (this.lastId) {
      url.searchParams.set("after", this.lastId);
    }
    if (this.ticket) {
      url.searchParams.set("ticket", this.ticket);
    } else if (socket && this.options.account) {
      url.searchParams.set("account", this.options.account); // a browser's socket carries no headers
    }
    return url;
  }

  // -- WebSocket ---------------------------------------------------------------------------------

  _openSocket() {
    const protocols = this.options.key ? ["agentops", `key.${this.options.key}`] : [];
    const path = `/ws/runs/${encodeURIComponent(this.runId)}/`;
    const socket = new WebSocket(this._address(path, true), protocols);
    let opened = false;
    this.socket = socket;
    this.heardAt = Date.now();
    socket.onopen = () => {
      opened = true;
      this.heardAt = Date.now();
      this.pingTimer = setInterval(() => this._ping(), PING_MS);
    };
    socket.onmessage = (message) => {
      this._heard();
      this._text(message.data);
    };
    socket.onclose = (closing) => {
      this.socketFailures = opened ? 0 : this.socketFailures + 1;
      if (CLOSE_REFUSED.has(closing.code)) {
        this._finish("refused");
      } else if (!this.ended) {
        this._reconnect();
      }
    };
  }

  _heard() {
    this.heardAt = Date.now();
    this.failures = 0;
    this.socketFailures = 0;
    this._setStatus("live");
  }

  _ping() {
    if (Date.now() - this.heardAt > SILENCE_MS) {
      this._reconnect();
    } else {
      this._send({ type: "ping" });
    }
  }

  _send(frame) {
    if (!this.socket || this.socket.readyState !== WebSocket.OPEN) {
      return false;
    }
    this.socket.send(JSON.stringify(frame));
    return true;
  }

  _acknowledge() {
    clearTimeout(this.ackTimer);
    this.ackTimer = null;
    this.unacked = 0;
    this._send({ type: "ack", id: this.lastId });
  }

  // -- SSE ---------------------------------------------------------------------------------------

  async _readSse() {
    const abort = new AbortController();
    this.abort = abort;
    const headers = { Accept: "text/event-stream" };
    if (this.options.key) {
      headers.Authorization = `Bearer ${this.options.key}`;
    }
    if (this.options.account) {
      headers["X-AgentOps-Account"] = this.options.account;
    }
    try {
      const path = `/api/v1/runs/${encodeURIComponent(this.runId)}/events`;
      const answer = await fetch(this._address(path, false), { headers, signal: abort.signal, cache: "no-store" });
      if (HTTP_REFUSED.has(answer.status)) {
        this._finish("refused");
        return;
      }
      if (answer.ok && answer.body) {
        await this._readBody(answer.body.getReader());
      }
    } catch {
      // A broken connection ends like a closed one: the next try goes on after the last id.
    }
    if (this.abort === abort && !this.ended) {
      this._reconnect();
    }
  }

  async _readBody(reader) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.ended || this.stopped) {
        return;
      }
      this._heard();
      const blocks = (rest + decoder.decode(value, { stream: true })).replace(/\r\n/g, "\n").split("\n\n");
      rest = blocks.pop();
      blocks.forEach((block) => this._sseBlock(block));
    }
  }

  _sseBlock(block) {
    const lines = block.split("\n");
    const name = lines.find((line) => line.startsWith("event:"));
    const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).replace(/^ /, ""));
    if (name && name.slice(6).trim() === "end") {
      this._end();
    } else if (name && name.slice(6).trim() === "error") {
      this._finish("refused"); // the key, the sign-in or the membership has ended
    } else if (data.length) {
      this._text(data.join("\n"));
    }
  }

  // -- frames, the same on both --------------------------------------------------------------------

  _text(text) {
    let frame;
    try {
      frame = JSON.parse(text);
    } catch {
      return;
    }
    this._frame(frame);
  }

  _frame(frame) {
    if (!frame || typeof frame !== "object") {
      return;
    }
    if (parseId(frame.id)) {
      this._event(frame);
    } else if (frame.kind === "gap") {
      this._tell("onGap", frame);
    } else if (frame.type === "hello" && frame.state) {
      this._tell("onState", frame.state);
    } else if (frame.type === "retried_by" && frame.run) {
      this._tell("onRetriedBy", frame.run);
    }
  }

  _event(event) {
    if (compareIds(event.id, this.lastId) <= 0) {
      return; // seen already: a reconnect may send the seam twice
    }
    this.lastId = event.id;
    this.unacked += 1;
    if (this.unacked >= ACK_EVENTS) {
      this._acknowledge();
    } else if (!this.ackTimer) {
      this.ackTimer = setTimeout(() => this._acknowledge(), ACK_MS);
    }
    this._apply(event);
    this._tell("onEvent", event);
    if (TERMINAL.has(stateAfter(event))) {
      this._end();
    }
  }

  _apply(event) {
    const data = event.data || {};
    if (event.kind === "output.delta" && typeof data.text === "string") {
      this.output.add(event.id, data.text);
      this._tell("onOutput", data.text, { reset: false });
    } else if (event.kind === "output.rollback") {
      this.output.rollback(event.id, data.after || "");
      this._tell("onOutput", this.output.toString(), { reset: true });
    } else if (event.kind === "gap") {
      this._tell("onGap", event);
    }
    const state = stateAfter(event);
    if (state) {
      this._tell("onState", state);
    }
  }

  _end() {
    if (this.ended) {
      return;
    }
    this._acknowledge();
    this.ended = true;
    this._finish("ended");
  }
}
