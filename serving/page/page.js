// The search page: asks the HTTP interface that serves it, and shows every text as text (textContent), never as HTML.
"use strict";

const TOKEN = "skillreason-token"; // in sessionStorage: gone when the tab is closed
const RETRIEVERS = { dense: "dense", bm25: "BM25", fused: "fused", rerank: "rerank" };
const byId = (id) => document.getElementById(id);
const form = byId("search");
const fields = Object.fromEntries(["query", "left", "right", "domain", "k", "hybrid", "rerank"].map((id) => [id, byId(id)]));
let indexes = [];
let running = null; // AbortController of the search under way

// -- the server ---------------------------------------------------------------------------------------------------------

class RequestError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function ask(path, body, signal) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("No connection to the server. Is it running? Then search again.");
  }
  if (response.ok) {
    try {
      return await response.json();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError("The server's answer broke off. Search again.", response.status);
    }
  }
  let said = "";
  try {
    said = (await response.json()).error.message || "";
  } catch {
    // not our error format: a proxy's page, say
  }
  throw new RequestError(explain(response.status, said, response.headers.get("Retry-After")), response.status);
}

function explain(status, said, retryAfter) {
  const again = Number(retryAfter) > 0 ? `Try again in ${Number(retryAfter)} s.` : "Try again in a moment.";
  if (status === 429) return `Too many requests. ${again}`;
  if (status === 503) return `The server cannot answer just now${said && `: ${said}`}. ${again}`;
  if (status === 504) return "The search took too long and was stopped. Try again, with rerank off or fewer results.";
  return said ? `${said.charAt(0).toUpperCase()}${said.slice(1)}` : `The server answered with status ${status}.`;
}

// -- small pieces -------------------------------------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function showError(error) {
  const box = byId("error");
  box.hidden = !error;
  box.textContent = error ? error.message : "";
  if (error && error.status === 401) showLogin(true);
}

function showLogin(show) {
  const refused = show && sessionStorage.getItem(TOKEN) !== null;
  if (refused) sessionStorage.removeItem(TOKEN);
  byId("login").hidden = !show;
  if (show) {
    byId("error").hidden = !refused;
    byId("error").textContent = refused ? "The server does not accept this token." : "";
    byId("token").focus();
  }
}

const described = (name) => indexes.find((index) => index.name === name);
const canFuse = (index) => index.model !== null && index.fusion_weight !== null;

function chosen() {
  return [fields.left.value, fields.right.value].map(described).filter(Boolean);
}

function fill(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, label]) => element("option", { value }, label)));
  if (options.some(([value]) => value === before)) select.value = before;
}

// A value that is no option means the first one: nothing, all.
function choose(select, value) {
  select.value = value || "";
  if (select.selectedIndex < 0) select.value = "";
}

// What the chosen indexes have decides what can be asked of them.
function refreshOptions() {
  const others = indexes.filter((index) => index.name !== fields.left.value);
  fill(fields.right, [["", "nothing"], ...others.map((index) => [index.name, index.name])]);
  const used = chosen();
  const domains = new Map();
  for (const index of used) {
    for (const [name, count] of Object.entries(index.domains)) domains.set(name, Math.max(count, domains.get(name) || 0));
  }
  const sorted = [...domains].sort(([a], [b]) => a.localeCompare(b));
  fill(fields.domain, [["", "all"], ...sorted.map(([name, count]) => [name, `${name} (${count})`])]);
  fields.domain.disabled = domains.size === 0;
  allow(fields.hybrid, used.some(canFuse), "needs an index with a model and a fusion weight");
  allow(fields.rerank, used.some((index) => index.has_reranker), "needs an index with a reranker");
}

function allow(box, possible, why) {
  box.disabled = !possible;
  if (!possible) box.checked = false;
  box.parentElement.title = possible ? "" : why;
}

// -- the address keeps the query ----------------------------------------------------------------------------------------

function address() {
  const parts = new URLSearchParams({ q: fields.query.value });
  const defaults = { left: indexes[0] && indexes[0].name, right: "", domain: "", k: "10" };
  for (const [name, usual] of Object.entries(defaults)) {
    if (fields[name].value !== usual) parts.set(name, fields[name].value);
  }
  for (const name of ["hybrid", "rerank"]) if (fields[name].checked) parts.set(name, "1");
  return `?${parts}`;
}

function readAddress() {
  const parts = new URLSearchParams(location.search);
  fields.query.value = parts.get("q") || "";
  fields.left.value = described(parts.get("left")) ? parts.get("left") : indexes[0].name;
  refreshOptions();
  choose(fields.right, parts.get("right"));
  fields.k.value = /^\d{1,3}$/.test(parts.get("k") || "") ? parts.get("k") : "10";
  refreshOptions();
  choose(fields.domain, parts.get("domain"));
  for (const name of ["hybrid", "rerank"]) fields[name].checked = !fields[name].disabled && parts.get(name) === "1";
}

// -- searching ----------------------------------------------------------------------------------------------------------

async function search(remember) {
  if (!fields.query.value.trim() || indexes.length === 0) return;
  if (remember && address() !== location.search) history.pushState(null, "", address());
  if (running) running.abort();
  const mine = (running = new AbortController());
  showError(null);
  byId("go").disabled = true;
  byId("status").textContent = "Searching";
  const used = chosen();
  const answers = await Promise.all(used.map((index) => searchOne(index, mine.signal).catch((error) => ({ error }))));
  if (mine !== running || mine.signal.aborted) return; // a later search has taken over
  running = null;
  byId("go").disabled = false;
  const failed = answers.filter((answer) => answer.error);
  const columns = byId("columns");
  byId("legend").hidden = answers.every((answer) => answer.error || answer.hits.length === 0);
  if (failed.length === answers.length) {
    columns.replaceChildren();
    byId("status").textContent = "";
    showError(failed[0].error);
    return;
  }
  columns.classList.toggle("two", used.length === 2);
  columns.replaceChildren(...answers.map((answer, place) => column(used[place], answer, answers[1 - place])));
  byId("status").textContent = answers
    .map((answer, place) => (answer.error ? answer.error.message : `${answer.hits.length} skills from ${used[place].name}`))
    .join("; ");
}

async function searchOne(index, signal) {
  const started = performance.now();
  const answer = await ask(
    "search",
    {
      query: fields.query.value,
      k: Number(fields.k.value),
      hybrid: fields.hybrid.checked && canFuse(index),
      rerank: fields.rerank.checked && index.has_reranker,
      domain: fields.domain.value || null,
      index: index.name,
    },
    signal,
  );
  return { ...answer, total_ms: performance.now() - started };
}

const milliseconds = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

function column(index, answer, other) {
  const kind = index.model ? index.model.replace(/\/+$/, "").split("/").pop() : "BM25";
  const about = [kind.toLowerCase() === index.name.toLowerCase() ? "" : kind, `${index.n_skills.toLocaleString("en")} skills`];
  if (!answer.error) about.push(`${milliseconds(answer.took_ms)} (${milliseconds(answer.total_ms)} with the network)`);
  const head = element(
    "header",
    {},
    element("h2", {}, index.name),
    element("p", { class: "about" }, about.filter(Boolean).join(" · ")),
  );
  const section = element("section", { class: "column", "aria-label": `Results of ${index.name}` }, head);
  if (answer.error) section.append(element("p", { class: "none" }, answer.error.message));
  else if (answer.hits.length === 0) section.append(element("p", { class: "none" }, "No skill was found."));
  else section.append(element("ol", {}, ...answer.hits.map((hit, rank) => item(hit, rank, answer, other))));
  return section;
}

function item(hit, rank, answer, other) {
  const open = element("button", { type: "button" }, hit.name);
  open.addEventListener("click", () => read(hit.skill_id, answer.index));
  const id = element("p", { class: "id" }, hit.skill_id);
  if (hit.domain && !hit.skill_id.startsWith(`${hit.domain}/`)) id.append(` · ${hit.domain}`);
  if (other && other.hits) {
    const place = other.hits.findIndex((candidate) => candidate.skill_id === hit.skill_id);
    const also = place < 0 ? `not among the ${other.hits.length} of ${other.index}` : `number ${place + 1} in ${other.index}`;
    id.append(" · ", element("span", { class: place < 0 ? "" : "also" }, also));
  }
  return element(
    "li",
    { class: "hit" },
    element("span", { class: "rank", "aria-hidden": "true" }, String(rank + 1)),
    element(
      "div",
      {},
      element("h3", {}, open),
      id,
      element("p", { class: "description" }, hit.description),
      scores(hit, answer.hits),
    ),
  );
}

// A bar a retriever: a cosine from 0 to 1, every other score from 0 (or the lowest shown, if below) to the highest shown.
function scores(hit, hits) {
  const list = element("dl", { class: "scores" });
  for (const [name, label] of Object.entries(RETRIEVERS)) {
    const value = hit.scores[name];
    if (value === undefined) continue;
    const all = hits.map((each) => each.scores[name]).filter((each) => each !== undefined);
    const low = Math.min(0, ...(name === "dense" ? [] : all));
    const high = name === "dense" ? 1 : Math.max(...all);
    const bar = element("span", { class: `bar ${name}` });
    const share = high > low ? (value - low) / (high - low) : 0;
    bar.style.width = `${Math.round(100 * Math.min(1, Math.max(0, share)))}%`;
    list.append(
      element("dt", value === hit.score ? { class: "ranked", title: "ranked by this" } : {}, label),
      element("dd", { class: "track", "aria-hidden": "true" }, bar),
      element("dd", {}, Math.abs(value) < 0.1 ? value.toFixed(4) : value.toFixed(Math.abs(value) < 10 ? 3 : 2)),
    );
  }
  return list;
}

// -- a whole document ---------------------------------------------------------------------------------------------------

async function read(skillId, index) {
  let skill;
  try {
    skill = await ask(`skills/${encodeURIComponent(skillId)}?index=${encodeURIComponent(index)}`);
  } catch (error) {
    showError(error);
    byId("error").scrollIntoView({ block: "nearest" });
    return;
  }
  byId("reader-name").textContent = skill.name;
  byId("reader-id").textContent = skill.skill_id;
  byId("reader-description").textContent = skill.description;
  byId("reader-body").textContent = skill.body;
  const pairs = Object.entries(skill.metadata).flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)]);
  byId("reader-metadata").replaceChildren(...pairs);
  byId("reader").showModal();
  byId("reader").scrollTop = 0;
}

// -- events -------------------------------------------------------------------------------------------------------------

async function start() {
  showError(null);
  try {
    indexes = (await ask("indexes")).indexes;
  } catch (error) {
    showError(error);
    return;
  }
  showLogin(false);
  indexes.sort((a, b) => Number(b.default) - Number(a.default)); // the default one first, the others as they came
  fill(fields.left, indexes.map((index) => [index.name, index.name]));
  byId("right-field").hidden = indexes.length < 2;
  const typed = fields.query.value; // while there was no connection, say
  readAddress();
  if (typed) fields.query.value = typed;
  await search(Boolean(typed));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (indexes.length === 0) start(); // the server was not there before
  else search(true);
});
fields.query.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});
for (const name of ["left", "right", "domain", "k", "hybrid", "rerank"]) {
  fields[name].addEventListener("change", () => {
    refreshOptions();
    if (form.checkValidity()) search(true);
  });
}
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value.trim());
  byId("token").value = "";
  start();
});
byId("reader-close").addEventListener("click", () => byId("reader").close());
window.addEventListener("popstate", () => {
  if (indexes.length === 0) return;
  readAddress();
  if (fields.query.value) search(false);
  else {
    byId("columns").replaceChildren();
    byId("legend").hidden = true;
  }
});
start();
