// What the pages cannot do without a script: live parts, charts, copying a secret, and keeping relative times true.
(() => {
  "use strict";
  document.documentElement.classList.add("js");

  // Charts: uPlot draws what is in data-chart; live parts bring new data for it.
  const charts = new Map();
  const ink = (name) => {
    const probe = document.createElement("span");
    probe.className = "ink-" + name;
    document.body.append(probe);
    const color = getComputedStyle(probe).color;
    probe.remove();
    return color;
  };
  const draw = (place) => {
    const chart = JSON.parse(place.dataset.chart);
    const old = charts.get(place);
    if (old) old.destroy();
    place.replaceChildren();
    if (!chart.rows[0]?.length) return; // nothing to draw yet
    const axis = { stroke: ink("axis"), grid: { stroke: ink("grid"), width: 1 }, ticks: { stroke: ink("grid"), width: 1 } };
    const text = (value) => (value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 }) + chart.unit);
    const series = chart.names.map((name) => {
      const color = ink(name);
      return { label: name, stroke: color, fill: name === "allowed" ? color.replace("rgb(", "rgba(").replace(")", ", 0.14)") : undefined, width: 2, points: { show: false }, value: (_, value) => text(value) };
    });
    charts.set(place, new uPlot({
      width: Math.max(240, place.clientWidth), height: 200, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
      series: [{ label: "UTC", value: (_, at) => (at == null ? "–" : new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ")) }, ...series],
      axes: [{ ...axis, values: (plot, ticks) => ticks.map((at) => new Date(at * 1000).toISOString().slice(...(plot.scales.x.max - plot.scales.x.min > 129600 ? [5, 10] : [11, 16]))) }, { ...axis, size: 56, values: (_, ticks) => ticks.map((v) => v.toLocaleString("en", { notation: "compact" })) }],
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      cursor: { y: false },
    }, chart.rows, place));
  };
  const drawAll = () => document.querySelectorAll("[data-chart]").forEach(draw);
  const fit = () => charts.forEach((plot, place) => plot.setSize({ width: Math.max(240, place.clientWidth), height: 200 }));
  addEventListener("resize", fit);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  // Live parts: the server sends a page's part whole, and each element in it takes the place of its like here.
  const say = (state, words) => document.querySelectorAll("[data-live-state]").forEach((e) => {
    if (e.dataset.is === state) return;
    e.dataset.is = state;
    e.textContent = words;
  });
  const renew = (html) => {
    const part = document.createElement("template");
    part.innerHTML = html;
    for (const fresh of part.content.querySelectorAll("[data-live], [data-chart]")) {
      const here = document.getElementById(fresh.id);
      if (!here) continue;
      if (here.dataset.chart !== undefined) {
        here.dataset.chart = fresh.dataset.chart;
        const plot = charts.get(here);
        if (plot) plot.setData(JSON.parse(fresh.dataset.chart).rows);
        else draw(here);
        continue;
      }
      if (here.innerHTML === fresh.innerHTML && here.className === fresh.className) continue;
      const focused = here.contains(document.activeElement) ? document.activeElement.id : "";
      here.className = fresh.className;
      here.replaceChildren(...fresh.childNodes);
      if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    }
  };
  // A page that nobody sees holds no connection: a browser has six for a host, and a replica a bounded number for all.
  const listen = () => {
    const from = document.body.dataset.stream;
    if (!from) return;
    let source, later;
    const close = () => { clearTimeout(later); source?.close(); };
    const open = () => {
      close();
      const mine = source = new EventSource(from);
      source.addEventListener("live", (event) => { say("on", "live"); renew(event.data); });
      source.addEventListener("over", () => { close(); location.reload(); });
      source.addEventListener("error", async () => {
        say("off", "not live: trying again");
        if (mine.readyState !== EventSource.CLOSED) return; // it tries by itself
        const answer = await fetch(from, { redirect: "manual" }).catch(() => null);
        if (answer?.type === "opaqueredirect") location.reload(); // nobody is signed in any more
        else if (mine === source) later = setTimeout(open, 5000);
      });
    };
    const seen = () => {
      if (!document.hidden) return open();
      close();
      source = null;
      say("off", "paused");
    };
    document.addEventListener("visibilitychange", seen);
    addEventListener("pagehide", close);
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
    seen();
  };

  // Relative times, as the server writes them.
  const relative = (at) => {
    const ago = (Date.now() - at) / 1000, d = Math.abs(ago);
    const whole = ago < 0 ? Math.round : Math.floor;
    const words = d < 10 ? "now" : d < 60 ? whole(d) + " s" : d < 3600 ? whole(d / 60) + " min" : d < 172800 ? whole(d / 3600) + " h" : whole(d / 86400) + " days";
    return words === "now" ? words : ago < 0 ? "in " + words : words + " ago";
  };
  setInterval(() => document.querySelectorAll("time[datetime] .ago").forEach((e) => {
    const words = relative(Date.parse(e.parentElement.dateTime));
    if (e.textContent !== words) e.textContent = words;
  }), 10000);

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch { // no clipboard without TLS: mark it, so that the keyboard can
      getSelection().selectAllChildren(source);
      button.textContent = "Marked: copy it now";
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches(".limit select[name$='.algorithm']")) event.target.closest(".limit").dataset.algorithm = event.target.value;
  });

  document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }); // on a phone the row is wider than the window
  drawAll();
  listen();
})();
