// Small conveniences on pages that work without them: copying a command, and a search that updates itself.
"use strict";

function offerCopies(root) {
  for (const button of root.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(source);
        const selection = window.getSelection();
        selection.removeAllRanges();
        selection.addRange(range);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      say("Copied");
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
}

function say(text) {
  const status = document.getElementById("status");
  if (status && status.textContent !== text) status.textContent = text;
}

function follow(live) {
  const events = new EventSource(live.dataset.events);
  let waiting = false;
  let ended = false;
  let shown = 0;

  async function show() {
    waiting = false;
    const answer = await fetch(live.dataset.live, { headers: { Accept: "text/html" } });
    if (!answer.ok) return;
    const text = await answer.text();
    const keep = state(live);
    live.innerHTML = text;
    restore(live, keep);
    offerCopies(live);
    const said = live.firstElementChild && live.firstElementChild.dataset.said;
    if (said && (ended || Date.now() - shown > 5000)) {
      say(said);
      shown = Date.now();
    }
  }

  function soon() {
    if (waiting) return;
    waiting = true;
    setTimeout(show, 700);
  }

  for (const name of ["trial", "best", "hypothesis", "budget"]) events.addEventListener(name, soon);
  events.addEventListener("end", () => {
    ended = true;
    events.close();
    setTimeout(show, 100);
  });
}

// What a reader has opened, chosen and focused stays so when the page around it changes.
function state(root) {
  const focus = document.activeElement;
  return {
    open: [...root.querySelectorAll("details[open] > summary")].map((one) => one.textContent.split("  ")[0].trim().split(/\s\d/)[0]),
    chosen: [...root.querySelectorAll("input[type=radio]:checked")].filter((one) => one.dataset.touched).map((one) => [one.name, one.value]),
    focus: root.contains(focus) ? [focus.tagName, focus.name || "", focus.value || "", focus.textContent.slice(0, 40)] : null,
  };
}

function restore(root, keep) {
  for (const summary of root.querySelectorAll("details > summary")) {
    const name = summary.textContent.split("  ")[0].trim().split(/\s\d/)[0];
    if (keep.open.includes(name)) summary.parentElement.open = true;
  }
  for (const [name, value] of keep.chosen) {
    const input = root.querySelector(`input[type=radio][name="${name}"][value="${value}"]`);
    if (input) { input.checked = true; input.dataset.touched = "1"; }
  }
  if (keep.focus) {
    const [tag, name, value, text] = keep.focus;
    const same = [...root.querySelectorAll(tag)].find((one) => (one.name || "") === name && (one.value || "") === value && one.textContent.slice(0, 40) === text);
    if (same) same.focus({ preventScroll: true });
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches && event.target.matches("input[type=radio]")) event.target.dataset.touched = "1";
});

offerCopies(document);
const live = document.getElementById("live");
if (live && live.dataset.events) follow(live);
