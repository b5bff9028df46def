/*
 * Charts over time, drawn by uPlot, each with the same numbers as a table. Colours are variables of the stylesheet.
 *
 * A figure.chart names its series in `data-keys`; `show` takes `{minutes: [epoch seconds], <key>: [numbers], note}`.
 */

import { draw } from "./held.js";
import { make } from "./palette.js";
import uPlot from "./vendor/uPlot.js";

const HEIGHT = 180;
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];
const NAMES = { wait_p50: "p50", wait_p95: "p95", run_p50: "p50", run_p95: "p95" };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function clock(seconds) {
  return new Date(seconds * 1000).toISOString().slice(11, 16);
}

export class Chart {
  constructor(figure) {
    this.figure = figure;
    this.keys = figure.dataset.keys.split(" ");
    this.place = figure.querySelector(".chart-plot");
    this.note = figure.querySelector(".chart-note");
    this.table = figure.querySelector(".chart-table");
    this.details = figure.querySelector("details");
    this.values = this.keys.map((key) => make("strong", {}));
    figure.querySelector(".chart-legend").append(...this.keys.map((key, n) => (
      make("li", {}, make("span", { class: `chart-line chart-line-${n}` }), `${NAMES[key] || key} `, this.values[n])
    )));
    new ResizeObserver(() => this.resize()).observe(this.place);
    this.details.addEventListener("toggle", () => this.fillTable());
    const redraw = () => this.redraw();
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  show(data) {
    this.data = [data.minutes, ...this.keys.map((key) => data[key])];
    const isEmpty = this.data.slice(1).every((series) => series.every((value) => !value));
    this.tell(isEmpty ? "Nothing ended in the last hour." : data.note);
    if (!this.plot) {
      this.redraw();
    } else {
      this.plot.setData(this.data);
    }
    draw(`table of ${this.figure.id}`, [this.table], () => this.fillTable());
  }

  /* The last numbers stay: what is drawn is old, not wrong. */
  fail(sentence) {
    this.tell(sentence);
  }

  tell(sentence) {
    if (this.note.textContent !== sentence) {
      this.note.textContent = sentence;
    }
  }

  redraw() {
    if (!this.data) {
      return;
    }
    if (this.plot) {
      this.plot.destroy();
    }
    const axis = { stroke: colour("--body-quiet-color"), grid: { stroke: colour("--hairline-color"), width: 1 }, ticks: { show: false } };
    this.plot = new uPlot({
      width: Math.max(1, this.place.clientWidth),
      height: HEIGHT,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [
        { ...axis, values: (_plot, ticks) => ticks.map(clock) },
        { ...axis, size: 56, values: (_plot, ticks) => ticks.map((tick) => (tick === null ? "" : String(tick))) },
      ],
      series: [{}, ...this.keys.map((key, n) => ({
        label: key, stroke: colour(`--chart-${n}`), width: 2, dash: DASHES[n], points: { show: true, size: 3 },
      }))],
      hooks: { setCursor: [({ cursor }) => this.read(cursor.idx)] },
    }, this.data, this.place);
  }

  /* Tell the values under the pointer in the legend. */
  read(at) {
    this.keys.forEach((_key, n) => {
      const value = at === null || at === undefined ? null : this.data[n + 1][at];
      this.values[n].textContent = value === null || value === undefined ? "" : String(value);
    });
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.plot && width && width !== this.plot.width) {
      this.plot.setSize({ width, height: HEIGHT });
    }
  }

  fillTable() {
    if (!this.data || !this.details.open) {
      return;
    }
    const unit = this.figure.dataset.unit;
    const heads = ["Minute, UTC", ...this.keys.map((key) => `${NAMES[key] || key}, ${unit}`)];
    const rows = this.data[0].map((minute, at) => make(
      "tr", {},
      make("th", { scope: "row" }, clock(minute)),
      ...this.keys.map((_key, n) => make("td", {}, this.data[n + 1][at] === null ? "none" : String(this.data[n + 1][at]))),
    )).reverse();
    this.table.replaceChildren(make(
      "table", { class: "plain numbers" },
      make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
      make("tbody", {}, ...rows),
    ));
  }
}
