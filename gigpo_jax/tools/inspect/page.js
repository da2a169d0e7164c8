"use strict";
// Texts come from models and environments. They enter the page as text nodes alone: nothing here parses HTML.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const CURVES = { "episode/success_rate": "success in training", "val/sampled/success_rate": "success on the panel",
  "episode/length": "steps of an episode", "policy/entropy": "entropy, nats a token" };
const cache = new Map();
const view = { run: 0, group: null, content: null, other: null, chosen: null, shade: "logprobs" };

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  set(node, attributes);
  node.append(...children.filter((child) => child !== null));
  return node;
}
function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  set(node, attributes);
  node.append(...children);
  return node;
}
function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
}
const show = (where, ...children) => document.getElementById(where).replaceChildren(...children.filter(Boolean));
const signed = (x, digits = 2) => x === null || x === undefined ? "–"
  : Math.abs(x) < 0.5 * 10 ** -digits ? "0" : (x > 0 ? "+" : "−") + Math.abs(x).toFixed(digits);
const percent = (x) => (100 * x).toFixed(1) + "%";
const number = (episode, s) => episode.steps.slice(0, s).filter((step) => !step.summary).length + 1;
const label = (episode, s) => (episode.steps[s].summary ? "summary before step " : "step ") + number(episode, s);
const outcome = (won) => won === null ? "aborted" : won ? "won" : "lost";

const picture = (number, alt) => el("img", { src: "data:image/png;base64," + document.getElementById("p" + number).textContent, alt });

async function unpack(id) {
  if (!cache.has(id)) {
    const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    cache.set(id, await new Response(stream).json());
  }
  return cache.get(id);
}

function head() {
  const first = DATA.runs[0].settings;
  document.title = `${first["rl.algorithm"]} on ${first["env.name"]}`;
  show("head", el("h1", {}, DATA.runs.map((run) => run.settings["rl.algorithm"]).join(" and ") + " on " + first["env.name"]),
    ...DATA.runs.map((run, i) => el("p", { class: "dim" }, `${DATA.runs.length > 1 ? "AB"[i] + ": " : ""}${run.name}. ` +
      Object.entries(run.settings).map(([key, value]) => `${key}=${value}`).join(", ") +
      (run.machines.length ? `. Machine: ${run.machines.join("; then ")}` : ""))));
}

function curves() {
  const plots = Object.entries(CURVES).map(([name, title]) => plot(name, title)).filter(Boolean);
  show("curves", el("h2", {}, "Curves, by iteration"), el("div", { class: "plots" }, ...plots));
}
function plot(name, title) {
  const lines = DATA.runs.map((run) => run.curves[name]);
  const points = lines.flat();
  if (!points.length) return null;
  const top = name.endsWith("rate") ? 1 : Math.max(...points.map((p) => p[1])) * 1.1 || 1;
  const last = Math.max(...points.map((p) => p[0]), 1);
  const x = (step) => 34 + 256 * step / last, y = (value) => 130 - 115 * value / top;
  const format = (v) => name.endsWith("rate") ? percent(v) : v.toPrecision(3);
  const ends = lines.map((line, i) => line.length ? `${DATA.runs.length > 1 ? "AB"[i] + ": " : ""}` +
    `${format(line[0][1])} to ${format(line[line.length - 1][1])}` : "").filter(Boolean).join("; ");
  return el("figure", {}, el("figcaption", {}, `${title}: ${ends}`),
    svg("svg", { viewBox: "0 0 300 150", role: "img", "aria-label": `${title}, ${ends}` },
      svg("line", { class: "axis", x1: 34, x2: 290, y1: 130, y2: 130 }), svg("line", { class: "axis", x1: 34, x2: 34, y1: 10, y2: 130 }),
      svg("text", { x: 30, y: 18, "text-anchor": "end" }, name.endsWith("rate") ? "100%" : top.toPrecision(2)),
      svg("text", { x: 30, y: 133, "text-anchor": "end" }, "0"), svg("text", { x: 290, y: 145, "text-anchor": "end" }, String(last)),
      ...lines.map((line, i) => svg("polyline", { class: `run${i}`, points: line.map((p) => `${x(p[0])},${y(p[1])}`).join(" ") }))));
}

function panel() {
  const tables = DATA.runs.map((run, i) => {
    if (!run.panel) return null;
    const shown = run.panel.evaluations;
    const rows = shown[shown.length - 1].rows.map((row, r) => el("tr", {}, el("td", {}, row.type),
      el("td", { class: "n" }, String(row.tasks)),
      ...shown.map((e) => el("td", { class: "n" }, e.rows[r] ? percent(e.rows[r].won / e.rows[r].tasks) : "")),
      el("td", {}, bar(row)), el("td", { class: "n" }, `${percent(row.interval[0])} to ${percent(row.interval[1])}`)));
    return el("table", {}, el("caption", {}, `${DATA.runs.length > 1 ? "AB"[i] + ": " : ""}panel ${run.panel.name}`),
      el("thead", {}, el("tr", {}, el("th", {}, "task type"), el("th", { class: "n" }, "tasks"),
        ...shown.map((e) => el("th", { class: "n" }, `iteration ${e.iteration}`)), el("th", {}, ""), el("th", { class: "n" }, "95% interval"))),
      el("tbody", {}, ...rows));
  }).filter(Boolean);
  if (tables.length) show("panel", el("h2", {}, "Success on the panel"), ...tables);
}
function bar(row) {
  const box = el("div", { class: "bar", "aria-hidden": true });
  const range = el("i"), mark = el("b");
  range.style.left = percent(row.interval[0]);
  range.style.width = percent(row.interval[1] - row.interval[0]);
  mark.style.left = percent(row.won / row.tasks);
  box.append(range, mark);
  return box;
}

function browse() {
  const groups = DATA.runs[view.run].groups;
  if (!groups.length) {
    show("browse", el("h2", {}, "Episodes"), el("p", {}, "No rollouts were saved; train with train.save_rollouts=1 or more."));
    return;
  }
  const kinds = [...new Set(groups.map((g) => g.type).filter(Boolean))].sort();
  const option = (value, text) => el("option", { value }, text);
  const tools = el("div", { class: "tools", id: "tools" },
    DATA.runs.length > 1 ? labelled("list of", select("run", DATA.runs.map((_, i) => option(i, "AB"[i])))) : null,
    labelled("search", el("input", { type: "search", id: "query", oninput: list })),
    labelled("type", select("kind", [option("", "all"), ...kinds.map((kind) => option(kind, kind))])),
    labelled("outcome", select("outcome", [option("", "all"), option("mixed", "some won"), option("won", "all won"), option("lost", "none won")])),
    labelled("order", select("order", [option("time", "newest first"), option("disagreement", "largest disagreement of the two levels")])));
  show("browse", el("h2", {}, "Episodes"), tools, el("div", { class: "columns" },
    el("nav", { class: "list", id: "list", "aria-label": "Task groups" }), el("div", { id: "group" })));
  list();
}
const labelled = (text, control) => el("label", {}, text, control);
function select(id, options) {
  const change = id === "run" ? () => { view.run = Number(document.getElementById("run").value); list(); } : list;
  return el("select", { id, onchange: change }, ...options);
}

function list() {
  const value = (id) => document.getElementById(id).value;
  const words = value("query").toLowerCase(), kind = value("kind"), wanted = value("outcome");
  const found = DATA.runs[view.run].groups.filter((g) => {
    const won = g.won.filter((w) => w !== null), wins = won.filter(Boolean).length;
    const how = !won.length ? "" : wins === won.length ? "won" : wins ? "mixed" : "lost";
    return (!kind || g.type === kind) && (!wanted || how === wanted) && (g.text + " " + g.task + " " + g.type).toLowerCase().includes(words);
  });
  if (value("order") === "disagreement") found.sort((a, b) => b.disagreement - a.disagreement);
  const buttons = found.map((g) => el("button", { type: "button", "data-id": g.id, "aria-current": g.id === view.group?.id,
    onclick: () => open(g.id) }, g.picture === null ? null : picture(g.picture, ""), title(g), el("small", {}, `${g.won.filter(Boolean).length} of ${g.won.length} won, iteration ${g.iteration + 1}` +
    (g.measured ? ", measured" : "") + (g.disagreement ? `, disagreement ${g.disagreement.toFixed(2)}` : "") + (g.type ? `, ${g.type}` : ""))));
  show("list", ...(buttons.length ? buttons : [el("p", {}, "No task group is like that.")]));
}
const title = (group) => (/your task is to: (.*)/i.exec(group.text) || [null, group.text.split("\n")[0] || group.task])[1];

async function open(id, place = null) {
  const run = DATA.runs.findIndex((r) => r.groups.some((g) => g.id === id));
  if (run < 0) return;
  view.group = DATA.runs[run].groups.find((g) => g.id === id);
  view.content = await unpack(id);
  const twin = DATA.runs.length > 1 ? DATA.runs[1 - run].groups.find((g) => g.task === view.group.task) : null;
  view.other = twin ? { summary: twin, content: await unpack(twin.id) } : null;
  for (const button of document.querySelectorAll("#list button")) {
    button.setAttribute("aria-current", button.dataset.id === id);
    if (button.dataset.id === id) button.parentNode.scrollTop = button.offsetTop - button.parentNode.offsetTop - 40;
  }
  const first = view.content.episodes.findIndex((e) => e.steps.length);
  const example = view.group.example;
  view.chosen = place || (example ? [0, example.episode, example.step] : [0, first < 0 ? 0 : first, 0]);
  draw();
}

function draw() {
  const sides = [[view.group, view.content]];
  if (view.other) sides.push([view.other.summary, view.other.content]);
  const labels = sides.length > 1 ? sides.map(([g]) => (g.id.startsWith("a") ? "A: " : "B: ") + `iteration ${g.iteration + 1}`) : [""];
  const measured = sides.some(([, c]) => c.episodes.some((x) => x.steps.some((s) => s.oracle)));
  const pictured = sides.some(([g]) => g.picture !== null);
  const parts = [...(pictured ? ["what it saw"] : []), "action", "episode adv.", "step adv.", ...(measured ? ["measured"] : [])];
  const key = el("div", { class: "key" }, el("span", { class: "cell sample" }, ...parts.map((part) => el("span", {}, part))),
    el("div", {}, el("p", {}, "Each box is a step. Episode advantage: did its episode do better (+) or worse (−) than the others of this task? " +
      "Step advantage: did more follow from it than from other steps that were taken in the same state?" +
      (measured ? " Measured: what the action was really worth, in units of reward." : "")),
    el("p", {}, "Blue and + make the action more likely, orange and − less likely. Double border: the same state as the chosen step. " +
      "Click a box, or move with the arrow keys.")));
  const strips = sides.map(([group, content], side) => el("div", {}, labels[side] ? el("h3", {}, labels[side]) : null,
    ...content.episodes.map((episode, e) => strip(content, episode, side, e))));
  show("group", el("h3", {}, title(view.group)), key, el("div", { class: sides.length > 1 ? "two" : "" }, ...strips),
    DATA.runs.length > 1 && !view.other ? el("p", { class: "dim" }, "The other run has no saved episodes of this task.") : null,
    el("div", { id: "step", "aria-live": "polite" }));
  mark(false);
}
function strip(content, episode, side, e) {
  const most = (...of) => Math.max(...content.episodes.flatMap((x) => x.steps.flatMap((s) => of.map((value) => Math.abs(value(s) ?? 0)))), 1e-9);
  const estimated = most((s) => s.episode, (s) => s.step), measured = most((s) => s.oracle?.[0]);
  const cells = episode.steps.map((step, s) => {
    const part = (x, most) => {
      const node = el("span", {}, signed(x, 1));
      if (x) node.style.background = `rgba(var(--${x > 0 ? "plus" : "minus"}), ${(0.15 + 0.55 * Math.abs(x) / most).toFixed(2)})`;
      return node;
    };
    return el("button", { type: "button", class: "cell", tabindex: -1, "data-at": [side, e, s].join("."),
      "data-same": `${side}.${step.group}`, title: step.action, onclick: () => choose([side, e, s]), onkeydown: (event) => walk(event, [side, e, s]),
      "aria-label": `episode ${e + 1}, ${label(episode, s)}, ${step.action}; episode advantage ${signed(step.episode)}, step advantage ${signed(step.step)}` },
      step.pictures.length ? picture(step.pictures[0], "") : null, el("span", { class: "action" }, (step.summary ? "summary: " : "") + step.action), part(step.episode, estimated), part(step.step, estimated),
      step.oracle ? part(step.oracle[0], measured) : null);
  });
  const wide = content.episodes.every((x) => x.steps.length <= 20);
  return el("div", { class: wide ? "episode wide" : "episode" }, el("span", {}, `episode ${e + 1}: ${episode.aborted ? "aborted" : outcome(episode.won)}${episode.replayed ? `, from step ${episode.replayed + 1}` : ""}`),
    el("div", { class: "steps" }, ...cells));
}
function choose(at) { view.chosen = at; mark(true); }
function walk(event, [side, e, s]) {
  const episodes = (side ? view.other.content : view.content).episodes;
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  if (!moves[event.key]) return;
  event.preventDefault();
  let next = e + moves[event.key][0];
  while (episodes[next] && !episodes[next].steps.length) next += moves[event.key][0];
  if (!episodes[next]) return;
  choose([side, next, Math.max(0, Math.min(s + moves[event.key][1], episodes[next].steps.length - 1))]);
}
function mark(focus) {
  const [side, e, s] = view.chosen;
  const content = side ? view.other.content : view.content;
  const step = content.episodes[e]?.steps[s];
  for (const cell of document.querySelectorAll(".cell")) {
    const me = cell.dataset.at === view.chosen.join(".");
    cell.classList.toggle("chosen", me);
    cell.classList.toggle("same", step && step.group !== null && cell.dataset.same === `${side}.${step.group}`);
    cell.setAttribute("aria-pressed", me);
    cell.tabIndex = me ? 0 : -1;
    if (me && focus) cell.focus();
  }
  if (step) detail(content, content.episodes[e], step, side, e, s);
  history.replaceState(null, "", `#${view.group.id}.${view.chosen.join(".")}`);
}

function detail(content, episode, step, side, e, s) {
  const here = content.episodes.flatMap((x, i) => x.steps.map((y, j) => ({ episode: x, step: y, e: i, s: j })))
    .filter((x) => step.group !== null && x.step.group === step.group);
  const saw = [el("h3", {}, step.summary ? "What the agent saw next" : "What the agent saw"), seen(content, episode, step, s)];
  const first = step.pictures.length ? saw.splice(0) : [];
  show("step", el("h3", {}, `Episode ${e + 1}, ${label(episode, s)}: ${step.action}`), ...first, verdict(content, episode, step, here),
    here.length > 1 ? company(here, side, e, s) : null, ...saw,
    step.anchor !== step.observation ? el("details", {}, el("summary", {}, "anchor state"), el("pre", {}, content.texts[step.anchor])) : null,
    el("details", {}, el("summary", {}, "prompt"), el("pre", { id: "prompt" }, content.texts[step.prompt])),
    el("h3", {}, "What it answered"), response(content, step));
}
function seen(content, episode, step, s) {
  const text = el("pre", {}, content.texts[step.observation]);
  if (!step.pictures.length) return text;
  const next = episode.steps[s + 1];
  const figure = (of, caption) => of.pictures.map((number) => el("figure", {},
    picture(number, `${caption}. The anchor state: ${content.texts[of.anchor]}`), el("figcaption", {}, caption)));
  return el("div", { class: "seen" }, ...figure(step, "before the action"), ...(next ? figure(next, `after it: ${step.action}`) : []), text);
}
function verdict(content, episode, step, here) {
  if (episode.aborted) return el("p", { class: "verdict" }, `The episode was aborted (${episode.reason}); it takes part in nothing.`);
  // A fork begins in a chosen state: it is not one of the episodes that tell how often the task is won.
  const done = content.episodes.filter((x) => !x.aborted && !x.forked), wins = done.filter((x) => x.won).length;
  const mean = here.reduce((sum, x) => sum + x.step.return, 0) / here.length;
  const lines = [`Its episode ${episode.forked ? "began in a state of another one and " : ""}was ${outcome(episode.won)}; ${wins} of the ${done.length} ${episode.forked ? "whole " : ""}episodes of this task were won. Episode advantage: ${signed(step.episode)}.`,
    here.length > 1 ? `${here.length} ${step.summary ? "summaries" : "steps"} of these episodes were ${step.summary ? "written in" : "taken from"} this same state. What followed this one was worth ${step.return.toFixed(2)}, ` +
      `on average ${mean.toFixed(2)}. Step advantage: ${signed(step.step)}.` : "No other step was taken from this state, so there is nothing to compare it with. Step advantage: 0.",
    `Together ${signed(step.total)}: the update makes this response ${!step.total ? "neither more nor less" : step.total > 0 ? "more" : "less"} likely.`];
  if (step.penalty) lines.push(`Penalty for an invalid response: ${step.penalty}.`);
  if (step.oracle) lines.push(oracle(step));
  if (step.regret !== null) lines.push(step.regret ? `Against optimal play it wasted ${step.regret} action${step.regret === 1 ? "" : "s"}.`
    : "Optimal play could do the same.");
  return el("div", { class: "verdict" }, ...lines.map((line) => el("p", {}, line)));
}
function oracle(step) {
  const [value, error] = step.oracle;
  const judged = Math.abs(value) < 2 * error ? "That is not clearly different from 0."
    : !step.total ? "The estimate gives no credit." : value * step.total > 0 ? "The estimate has the right sign." : "The estimate has the wrong sign.";
  return `Measured by playing on from before and after this step many times: true advantage ${signed(value)} ` +
    `(standard error ${error.toFixed(2)}). ${judged}`;
}
function company(here, side, e, s) {
  const actions = [...new Set(here.map((x) => x.step.action))].map((action) => here.filter((x) => x.step.action === action));
  const mean = (of, value) => of.reduce((sum, x) => sum + value(x), 0) / of.length;
  actions.sort((a, b) => mean(b, (x) => x.step.return) - mean(a, (x) => x.step.return));
  const rows = actions.map((of) => el("tr", { class: of.some((x) => x.e === e && x.s === s) ? "me" : "" }, el("td", {}, of[0].step.action),
    el("td", {}, ...of.map((x) => el("button", { type: "button", onclick: () => choose([side, x.e, x.s]), "aria-label": `episode ${x.e + 1}, ${label(x.episode, x.s)}`,
      "aria-pressed": x.e === e && x.s === s }, `${x.e + 1}.${number(x.episode, x.s)}`))),
    el("td", { class: "n" }, `${of.filter((x) => x.episode.won).length} of ${of.length}`), el("td", { class: "n" }, mean(of, (x) => x.step.return).toFixed(2)),
    el("td", { class: "n" }, signed(mean(of, (x) => x.step.step)))));
  return el("table", {}, el("caption", {}, "Who else stood here, what they did, and what they got"), el("thead", {}, el("tr", {}, el("th", {}, "action"),
    el("th", {}, "episode.step"), el("th", { class: "n" }, "won"), el("th", { class: "n" }, "mean return"), el("th", { class: "n" }, "mean step adv."))),
    el("tbody", {}, ...rows));
}
function response(content, step) {
  const choices = [["logprobs", "improbable tokens"], ["entropy", "uncertain tokens"]].filter(([name]) => step[name]);
  const whole = step.tokens.map((token) => content.pieces[token]).join("") === content.texts[step.response];
  const tokens = el("div", { class: whole ? "tokens" : "tokens apart" });
  const paint = () => {
    const values = (step[view.shade] || step.logprobs).map(Math.abs);
    const most = Math.max(...values, 1);
    tokens.replaceChildren(...step.tokens.map((token, i) => {
      const node = el("span", { title: `log-probability ${step.logprobs[i].toFixed(3)}` + (step.entropy ? `, entropy ${step.entropy[i].toFixed(3)}` : "")
        + (step.versions ? `, weights ${step.versions[i]}` : "") },
        content.pieces[token]);
      const strength = values[i] / most;
      node.style.background = `rgba(var(--minus), ${(0.7 * strength).toFixed(2)})`;
      if (strength > 0.5) node.style.borderBottomColor = "currentColor";
      return node;
    }));
  };
  const pick = el("select", { id: "shade", onchange: (event) => { view.shade = event.target.value; paint(); } },
    ...choices.map(([name, text]) => el("option", { value: name, selected: name === view.shade }, text)));
  paint();
  return el("div", {}, el("div", { class: "tools" }, labelled("shade", pick)), tokens,
    el("p", { class: "dim" }, `Decoded: ${content.texts[step.response]}` + (step.valid ? "" : " (invalid)")));
}

function follow() {
  let known = null;
  setInterval(async () => {
    try {
      const version = await (await fetch("version")).text();
      if (known !== null && version !== known) location.reload();
      known = version;
    } catch (error) { /* the server has stopped: the page stays as it is */ }
  }, 5000);
}

head();
curves();
panel();
browse();
const wanted = /^#([ab]\d+)\.(\d+)\.(\d+)\.(\d+)$/.exec(location.hash);
if (wanted) open(wanted[1], wanted.slice(2).map(Number));
else if (DATA.runs[0].groups.length) {
  // The group with the clearest example: its advantages are right and a reader sees why.
  const score = (group) => group.example?.score ?? 0;
  open(DATA.runs[0].groups.reduce((best, group) => (score(group) > score(best) ? group : best)).id);
}
if (DATA.live) follow();
