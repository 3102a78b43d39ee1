// Shows the episodes of one evaluation. Whatever a model wrote becomes the text of a text node, never markup.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const PAGE = 200;
let shown = PAGE, open = null;

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined && text !== null) element.textContent = text;
  return element;
}

const number = value => value === null || value === undefined ? "not graded" : String(Math.round(value * 1000) / 1000);
function grading(episode) {
  if (episode.failed) return "failed";
  if (episode.passing !== null && episode.passing >= data.pass_mark - 1e-9) return "passed";
  if (episode.score === null) return "none";
  return episode.score > 0 ? "partly" : "zero";
}
const COLOURS = { passed: "good", partly: "mid", zero: "bad", none: "none", failed: "none" };

function wanted(episode) {
  const slice = byId("slice").value, score = byId("score").value, ended = byId("ended").value;
  const words = byId("words").value.toLowerCase();
  return (!slice || episode.slice === slice) && (!score || grading(episode) === score)
    && (!ended || episode.ended === ended)
    && (!words || (episode.search ||= JSON.stringify(episode).toLowerCase()).includes(words));
}

function choices(id, values) {
  for (const value of [...new Set(values)].sort()) {
    const option = make("option", "", value);
    option.value = value;
    byId(id).append(option);
  }
}

function list() {
  const found = data.episodes.filter(wanted), rows = found.slice(0, shown).map(row);
  if (found.length > shown) {
    const more = make("button", "more", `${found.length - shown} more`);
    more.onclick = () => { shown += PAGE; list(); };
    rows.push(more);
  }
  byId("list").replaceChildren(...rows);
  byId("count").textContent = `${found.length} of ${data.episodes.length} episodes`;
}

function row(episode) {
  const button = make("button");
  button.append(make("span", `score ${COLOURS[grading(episode)]}`, episode.score === null ? "–" : number(episode.score)));
  const what = make("span", "", episode.title || episode.problem);
  what.append(make("br"), make("small", "", `${episode.slice} · ${episode.ended}`));
  button.append(what, make("small", "", `#${episode.attempt + 1}`));
  button.setAttribute("aria-current", String(episode === open));
  button.onclick = () => {
    open = episode;
    for (const other of byId("list").children) other.setAttribute("aria-current", String(other === button));
    show(episode);
  };
  return button;
}

function show(episode) {
  const parts = [make("h2", "", episode.title || episode.problem),
    make("p", "soft", `problem ${episode.problem} · attempt ${episode.attempt + 1} · ${episode.slice} · ended: ${episode.ended}`
      + ` · ${episode.turns} ${episode.turns === 1 ? "call" : "calls"} · ${episode.output_tokens === null ? "tokens not said" : episode.output_tokens + " tokens"}`
      + ` · trace ${episode.trace}`)];
  if (episode.why) parts.push(make("p", "notice said", episode.why));
  if (episode.rewards) parts.push(grades(episode.rewards));
  if (episode.truth) parts.push(piece("details", "the problem's answer", episode.truth));
  if (episode.said === null) parts.push(make("p", "notice", "Its conversation is in results.jsonl: this page would be too large."));
  else for (const block of episode.said) parts.push(turn(block));
  byId("one").replaceChildren(...parts);
  byId("one").scrollTop = 0;
}

function piece(tag, title, text) {
  const box = make(tag);
  box.append(make("summary", "soft", title), make("div", "said code", text));
  return box;
}

function grades(found) {
  const table = make("table");
  for (const grade of found) {
    const line = make("tr");
    line.append(make("td", "", grade.name + (grade.weight ? "" : " (metric)")),
      make("td", "number " + (grade.value === null ? "none" : ""), number(grade.value)),
      make("td", "said soft", grade.reason));
    table.append(line);
  }
  return table;
}

function turn(block) {
  if (block.role === "branch") return make("p", "branch", "— another branch —");
  const kind = ["user", "assistant", "system"].includes(block.role) ? block.role : "tool";
  const box = make("div", `turn ${kind}${block.error ? " failed" : ""}`), who = make("div", "who");
  who.append(make("span", "", block.role));
  if (block.finish) who.append(make("span", "", `finished: ${block.finish}`));
  box.append(who, ...block.parts.map(part));
  if (!block.parts.length && !block.error) box.append(make("div", "none", "nothing was said"));
  if (block.error) box.append(make("div", "said wrong", block.error));
  for (const step of block.steps || []) {
    const line = make("div", "steps");
    line.append(make("span", "", `step reward ${step.name}: `), make("b", "", number(step.value)));
    if (step.reason) line.append(make("span", "said soft", ` ${step.reason}`));
    box.append(line);
  }
  return box;
}

function part(one) {
  if (one.t === "picture") {
    const picture = make("img");
    picture.src = one.x;
    picture.alt = "a picture of the conversation";
    return picture;
  }
  if (one.t === "call") {
    const call = make("div", "said code");
    call.append(make("b", "", one.name), document.createTextNode(` ${one.x}`));
    return call;
  }
  if (one.t === "result") return make("div", `said code${one.failed ? " wrong" : ""}`, one.name ? `${one.name}: ${one.x}` : one.x);
  return make("div", one.t === "text" ? "said" : `said ${one.t === "note" ? "none" : one.t}`, one.x);
}

choices("slice", data.episodes.map(episode => episode.slice));
choices("ended", data.episodes.map(episode => episode.ended));
for (const id of ["slice", "score", "ended", "words"]) byId(id).addEventListener("input", () => { shown = PAGE; list(); });
list();
const first = data.episodes.find(wanted);
if (first) byId("list").firstChild.click();
