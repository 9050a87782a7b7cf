"use strict";
// Draws the figures in the page's colours and draws them again when those change, when the page is printed or a switch is moved.
(() => {
  const PRINT_WIDTH = 660;
  const figures = JSON.parse(document.getElementById("figure-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const print = matchMedia("print");
  const touch = matchMedia("(pointer: coarse)");

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const faint = (hex) => `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",")},0.18)`;

  function chosen() {
    const view = document.querySelector('input[name="view"]:checked');
    const off = (name) => [...document.querySelectorAll(`input[name="${name}"]:not(:checked)`)].map((box) => Number(box.value));
    return { view: view ? view.value : "mean", models: new Set(off("model")), seeds: new Set(off("seed")) };
  }

  function dressed(trace) {
    const ours = structuredClone(trace);
    if (ours.type === "heatmap") {
      ours.colorbar.tickcolor = ours.colorbar.outlinecolor = colour("line");
      return ours;
    }
    const tone = colour(trace.meta.colour);
    if (trace.meta.band) {
      ours.fillcolor = faint(tone);
      return ours;
    }
    ours.line = { ...ours.line, color: tone };
    ours.marker = { ...ours.marker, color: tone };
    if (ours.mode === "markers") ours.marker.line = { width: 1.5, color: colour("bg") };
    if (ours.error_y) ours.error_y.color = tone;
    return ours;
  }

  function laidOut(layout) {
    const ours = structuredClone(layout);
    ours.paper_bgcolor = ours.plot_bgcolor = "rgba(0,0,0,0)";
    ours.font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("fg") };
    ours.hoverlabel = { bgcolor: colour("shade"), bordercolor: colour("line"), font: { color: colour("fg") }, namelength: -1 };
    ours.modebar = { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("fg") };
    for (const key of Object.keys(ours).filter((name) => /^[xy]axis/.test(name))) {
      ours[key] = { gridcolor: colour("grid"), linecolor: colour("line"), zeroline: false, ...ours[key] };
    }
    // A finger that moves over a figure wants to scroll the page.
    ours.dragmode = touch.matches ? false : "zoom";
    ours.autosize = !print.matches;
    if (print.matches) ours.width = PRINT_WIDTH;
    return ours;
  }

  // Named one by one: plotly's own choice has a button that uploads the figure's data.
  const config = {
    responsive: true,
    displaylogo: false,
    showSendToCloud: false,
    plotlyServerURL: "",
    displayModeBar: touch.matches ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  function draw() {
    const { view, models, seeds } = chosen();
    const switches = document.getElementById("single-seeds");
    if (switches) switches.disabled = view !== "seeds";
    for (const figure of figures) {
      const shown = figure.data
        .filter(({ meta }) => !models.has(meta.model) && (!meta.view || meta.view === view) && !seeds.has(meta.seed))
        .map(dressed);
      // The seeds of a recipe share one entry of the legend: that of the first that is shown.
      const named = new Set();
      for (const trace of shown.filter(({ meta }) => "seed" in meta)) {
        trace.showlegend = !named.has(trace.legendgroup);
        named.add(trace.legendgroup);
      }
      Plotly.react(document.getElementById(`${figure.id}-canvas`), shown, laidOut(figure.layout), config);
    }
  }

  const folded = document.querySelectorAll("details:not([open])");
  print.addEventListener("change", () => {
    for (const one of folded) one.open = print.matches;
    draw();
  });
  dark.addEventListener("change", draw);
  for (const form of document.querySelectorAll("form.switches")) {
    form.addEventListener("change", draw);
    form.addEventListener("submit", (event) => event.preventDefault());
  }
  draw();
})();
