// Puts the texts that the server sends where the page shows them, as text, never as markup.
"use strict";
{
  // A cell as its column's head has it: aligned, a link (not to the store itself), or a badge with a state.
  const fill = (cell, head, text) => {
    let place = cell;
    cell.className = head.className;
    if (head.dataset.to && text !== "store") {
      place = document.createElement("a");
      place.href = head.dataset.to + encodeURIComponent(text);
    } else if (head.classList.contains("badge")) {
      place = document.createElement("span");
      place.className = "badge";
      place.dataset.state = text;
    }
    place.textContent = text;
    if (place !== cell) {
      cell.append(place);
    }
  };
  const rowOf = (body, cells) => {
    const heads = body.parentElement.tHead.rows[0].cells, row = document.createElement("tr");
    cells.forEach((text, column) => {
      const cell = document.createElement(column === 0 ? "th" : "td");
      if (column === 0) {
        cell.scope = "row";
      }
      fill(cell, heads[column], text);
      row.append(cell);
    });
    return row;
  };
  const state = document.getElementById("state");
  const places = new Map();
  for (const place of document.querySelectorAll("[data-live], [data-live-state]")) {
    for (const name of new Set([place.dataset.live, place.dataset.liveState])) {
      if (name) {
        places.set(name, [...(places.get(name) ?? []), place]);
      }
    }
  }
  const show = (place, name, text) => {
    if (place.dataset.liveState === name) {
      place.dataset.state = text;
    }
    if (place.dataset.live !== name) {
      return;
    }
    if (Array.isArray(text)) {
      place.replaceChildren(...text.map((cells) => rowOf(place, cells)));
    } else if (place.hasAttribute("points")) {
      place.setAttribute("points", text);
    } else {
      place.textContent = text;
    }
  };
  if (places.size > 0) {
    const events = new EventSource(document.currentScript.dataset.events);
    events.onopen = () => { state.textContent = "Live"; };
    events.onerror = () => { state.textContent = "Not live: the connection is lost, trying again"; };
    events.onmessage = (event) => {
      for (const [name, text] of Object.entries(JSON.parse(event.data))) {
        for (const place of places.get(name) ?? []) {
          show(place, name, text);
        }
      }
    };
    addEventListener("pagehide", () => events.close());
  }
}
