// The page at /: it asks the server's own API and shows the answers.
"use strict";

const get = (id) => document.getElementById(id);
let token = "";
// What /health said about the model that answers.
let serving = null;

const WORDS = {
  entailment: "A entails B", reversed: "B entails A", neutral: "Neither entails the other", contradiction: "A and B contradict each other",
};
// What each answer says of the same sentences in the other order.
const TURNED = { entailment: "reversed", reversed: "entailment", neutral: "neutral", contradiction: "contradiction" };
// The model whose answers the examples show.
let shown = "";

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
  } catch {
    throw new Refused(0, "The server does not answer.");
  }
  if (answer.status === 401) get("access").hidden = false;
  if (answer.ok) return answer.json();
  // A proxy in front of the server may answer with something other than JSON.
  const problem = await answer.json().catch(() => null);
  throw new Refused(answer.status, problem?.error?.message ?? `The server answered ${answer.status}.`);
}

// All answers of one picture come from one version, also while the champion changes.
async function askTogether(questions) {
  for (;;) {
    const answers = await Promise.all(questions().map(([path, body]) => ask(path, body)));
    if (answers.every((answer) => answer.model === answers[0].model)) return answers;
    await refresh();
    if (!serving) throw new Refused(503, "No model is ready yet.");
  }
}

async function refresh() {
  const state = get("state");
  try {
    const health = await ask("health");
    serving = health.serving;
    get("access").hidden = true;
    state.textContent = serving ? `${serving.model} answers. ${serving.note}`.trim() : "No model is ready yet.";
    if (health.refused) state.textContent += ` Version ${health.refused.number} was kept out: ${health.refused.reason}.`;
  } catch (error) {
    serving = null;
    state.textContent = error.status === 401 ? "This server asks for a token." : error.message;
  }
  document.querySelector("main").hidden = !serving;
  if (!serving) {
    if (get("access").hidden) setTimeout(refresh, 2000);
    return;
  }
  if (serving.model !== shown) showExamples();
  const searches = serving.search === "yes";
  get("search").hidden = !searches;
  get("no-search").hidden = searches;
  get("no-search").textContent = searches ? "" : `This server does not search (${serving.search}).`;
}

// One form asks once at a time; what is wrong is said below it.
function onSubmit(name, work) {
  const form = get(name);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const buttons = form.querySelectorAll("button");
    buttons.forEach((button) => (button.disabled = true));
    get(`${name}-error`).textContent = "";
    try {
      // The champion may have changed since.
      await refresh();
      if (serving) await work(form);
    } catch (error) {
      get(`${name}-error`).textContent = error.message;
    } finally {
      buttons.forEach((button) => (button.disabled = false));
    }
  });
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

// Without a relation head, or if the server refuses, there are no examples.
async function showExamples() {
  get("examples").hidden = true;
  shown = serving.model;
  if (!serving.relation) return;
  const examples = await ask("page/examples.json").catch(() => []);
  const [premises, hypotheses] = [1, 2].map((side) => examples.map((example) => example[side]));
  const answer = await ask("relation", { premises, hypotheses }).catch(() => null);
  if (!answer) {
    shown = "";
    return;
  }
  let right = 0;
  get("answered").replaceChildren(...examples.map(([kind, a, b, truth], row) => {
    const best = answer.label[row];
    right += best === truth;
    const item = document.createElement("li");
    const note = document.createElement("span");
    note.className = best === truth ? "soft" : "error";
    note.textContent = ` ${best === truth ? "Right" : "Wrong"}: ${WORDS[best]} (${percent(answer.relation[row][best])})`
      + `${best === truth ? "" : `; true is: ${WORDS[truth]}`}.`;
    const pair = document.createElement("button");
    pair.type = "button";
    pair.className = "pair";
    pair.textContent = `“${a}” “${b}”`;
    pair.addEventListener("click", () => {
      get("a").value = a;
      get("b").value = b;
      get("compare").requestSubmit();
      get("compare-title").scrollIntoView();
    });
    item.append(`${kind}: `, pair, note);
    return item;
  }));
  get("examples-note").textContent = `One pair of each kind, and what this model says of A and B: ${right} of ${examples.length} are right. Press a pair to see more.`;
  get("examples").hidden = false;
}

function bar(words, value, text, kind = "", turned = null) {
  const row = document.createElement("tr");
  row.className = kind;
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = words;
  const meter = document.createElement("meter");
  meter.value = value;
  meter.setAttribute("aria-label", words);
  const cells = [meter, text, ...(turned === null ? [] : [turned])].map((content) => {
    const cell = document.createElement("td");
    cell.append(content);
    return cell;
  });
  row.append(head, ...cells);
  return row;
}

// What the model did not see of the texts.
const unseen = ({ cut, unknown }) => (unknown ? "The model does not know many of these words; do not trust its answer. " : "")
  + (cut ? "The end of a text was cut off: it is longer than the model reads. " : "");

async function compare() {
  const [a, b] = [get("a").value, get("b").value];
  const [encoded, similarity, relation] = await askTogether(() => [
    ["encode", { sentences: [a, b] }],
    ["similarity", { a: [b, a], b: [a, b] }],
    ...(serving.relation ? [["relation", { premises: [a, b], hypotheses: [b, a] }]] : []),
  ]);
  // sim(hypothesis‖premise) is the score of "the premise entails the hypothesis".
  const [forward, backward] = similarity.similarity;
  const rows = [];
  get("orders").hidden = !relation;
  if (relation) {
    const [chances, other] = relation.relation;
    const [best, turned] = [relation.label[0], TURNED[relation.label[1]]];
    const differs = best === turned ? "" : ` Asked in the other order, it says: ${WORDS[turned]}. Trust neither.`;
    get("verdict").textContent = `${WORDS[best]} (${percent(chances[best])}).${differs}`;
    get("bars-note").textContent = `${unseen(encoded)}Probabilities by the relation head (blue: one sentence entails the other; grey: neither; orange: they contradict each other), asked in both orders; the other numbers are ${serving.similarity}.`;
    for (const name in WORDS) rows.push(bar(WORDS[name], chances[name], percent(chances[name]), name, percent(other[TURNED[name]])));
  } else if (serving.directed) {
    const [first, second] = forward >= backward ? "AB" : "BA";
    get("verdict").textContent = `If one entails the other, then ${first} entails ${second}.`;
    get("bars-note").textContent = `${unseen(encoded)}Scores: ${serving.similarity}, between 0 and 1. They are not probabilities: this model has no relation head.`;
  } else {
    get("verdict").textContent = `The similarity is ${backward.toFixed(3)}.`;
    get("bars-note").textContent = `${unseen(encoded)}The similarity is ${serving.similarity}. This model was not trained to say which sentence entails which.`;
  }
  if (serving.directed) {
    rows.push(bar("Score of “A entails B”", forward, forward.toFixed(4)), bar("Score of “B entails A”", backward, backward.toFixed(4)));
  } else if (serving.score === "cosine") {
    rows.push(bar("Cosine", Math.max(0, forward), forward.toFixed(4)));
  } else {
    rows.push(bar("Similarity sim(A‖B)", backward, backward.toFixed(4)), bar("Similarity sim(B‖A)", forward, forward.toFixed(4)));
  }
  get("bars").replaceChildren(...rows);
  document.querySelector("figure").hidden = !serving.directed;
  if (serving.directed) draw(encoded.mean, encoded.variance);
  get("comparison").hidden = false;
  get("state").textContent = `${encoded.model} answers. ${serving.note}`.trim();
}

const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
const scaled = (x, factor) => x.map((value) => value * factor);
const unit = (x) => scaled(x, 1 / Math.sqrt(dot(x, x)));
const without = (x, axis) => x.map((value, i) => value - dot(x, axis) * axis[i]);

// A plane to look at two diagonal Gaussians in D dimensions. x goes through both means. y is the direction at a right angle to it
// in which the variances differ most: the eigenvector of the largest |eigenvalue| of their difference, by power iteration.
function plane(mean, variance) {
  const difference = variance[0].map((value, i) => value - variance[1][i]);
  const between = mean[1].map((value, i) => value - mean[0][i]);
  const largest = (x) => x.reduce((best, value, i) => (Math.abs(value) > Math.abs(x[best]) ? i : best), 0);
  const base = (i) => between.map((_, k) => (k === i ? 1 : 0));
  const x = dot(between, between) > 0 ? unit(between) : base(0);
  let start = without(base(largest(difference)), x);
  // The means may differ in this one dimension only; then any other serves as a start.
  if (dot(start, start) < 1e-12) start = without(base(Math.abs(x[0]) > 0.5 ? 1 : 0), x);
  let y = unit(start);
  for (let turn = 0; turn < 300; turn++) {
    const next = without(y.map((value, i) => value * difference[i]), x);
    if (dot(next, next) < 1e-30) break;
    y = unit(without(next, x));
  }
  return [x, y];
}

// The ellipse at one standard deviation of a Gaussian seen in a plane: its covariance there is exact.
function ellipse(variance, [x, y]) {
  const along = (p, q) => variance.reduce((sum, value, i) => sum + value * p[i] * q[i], 0);
  const [xx, xy, yy] = [along(x, x), along(x, y), along(y, y)];
  const [middle, half] = [(xx + yy) / 2, Math.hypot((xx - yy) / 2, xy)];
  return { long: Math.sqrt(middle + half), short: Math.sqrt(Math.max(0, middle - half)), angle: Math.atan2(2 * xy, xx - yy) / 2 };
}

function draw(mean, variance) {
  const axes = plane(mean, variance);
  const distance = Math.hypot(...mean[1].map((value, i) => value - mean[0][i]));
  const [width, height, margin] = [640, 360, 36];
  const shapes = variance.map((values) => ellipse(values, axes));
  const reach = Math.max(shapes[0].long, shapes[1].long);
  const scale = Math.min((width - 2 * margin) / (distance + 2 * reach), (height - 2 * margin) / (2 * reach));
  const svg = get("gaussians");
  const node = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    return made;
  };
  svg.replaceChildren();
  shapes.forEach((shape, k) => {
    const name = "ab"[k];
    const cx = width / 2 + (k - 0.5) * distance * scale;
    const cy = height / 2;
    // y goes down in a picture.
    const turned = `rotate(${(-shape.angle * 180) / Math.PI} ${cx} ${cy})`;
    const label = node("text", { class: `gaussian-${name}`, x: cx, y: k ? cy + 24 : cy - 12, "text-anchor": "middle", stroke: "none" });
    label.textContent = name.toUpperCase();
    const size = { rx: Math.max(1, shape.long * scale), ry: Math.max(1, shape.short * scale) };
    svg.append(node("ellipse", { class: `gaussian-${name}`, cx, cy, ...size, transform: turned }));
    svg.append(node("circle", { class: `gaussian-${name}`, cx, cy, r: 3 }), label);
  });
  // The geometric mean of the standard deviations, by which the entropies of two Gaussians are compared.
  const spread = variance.map((values) => Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length / 2));
  const [a, b] = spread.map((value) => value.toFixed(3));
  // Two sentences that say the same differ by 5 % (one standard deviation, on SICK), so a tenth is more than noise.
  const ratio = Math.log(spread[0] / spread[1]);
  const wide = Math.abs(ratio) < 0.1 ? "so neither is clearly broader" : `so ${ratio > 0 ? "A" : "B"} is the broader one`;
  const numbers = `The means are ${distance.toFixed(3)} apart; the standard deviations are ${a} (A) and `
    + `${b} (B) in the geometric mean, ${wide}.`;
  svg.setAttribute("aria-label", `Two ellipses. ${numbers}`);
  get("gaussians-note").textContent = `${numbers} The picture is the plane through both means in which the variances differ most; `
    + "an ellipse is one standard deviation. All other dimensions are left out.";
}

async function search(form) {
  const way = new FormData(form).get("way");
  const answer = await ask("search", {
    sentences: [get("query").value], way, k: 10, by: serving.directed ? "similarity" : "cosine",
  });
  const rows = answer.results[0];
  get("found").textContent = `Best first, by ${answer.model}:`;
  get("results").replaceChildren(...rows.map(({ row, score, ...columns }) => {
    const item = document.createElement("li");
    const kept = Object.values(columns).map(String).join(" · ");
    const note = document.createElement("span");
    note.className = "soft";
    note.textContent = ` ${score.toFixed(4)}${kept ? `, row ${row}` : ""}`;
    item.append(kept || `row ${row}`, note);
    return item;
  }));
}

onSubmit("compare", compare);
onSubmit("search", search);
get("swap").addEventListener("click", () => {
  [get("a").value, get("b").value] = [get("b").value, get("a").value];
  get("compare").requestSubmit();
});
get("access").addEventListener("submit", (event) => {
  event.preventDefault();
  token = get("token").value.trim();
  refresh();
});
refresh();
