// Puts the texts that the server sends where the page shows them, as text, never as markup.
"use strict";
{
  // A row of a table, whose cells are aligned as its heads are.
  const rowOf = (body, cells) => {
    const heads = body.parentElement.tHead.rows[0].cells, row = document.createElement("tr");
    cells.forEach((text, column) => {
      const cell = document.createElement(column === 0 ? "th" : "td");
      if (column === 0) {
        cell.scope = "row";
      }
      cell.className = heads[column].className;
      cell.textContent = text;
      row.append(cell);
    });
    return row;
  };
  const state = document.getElementById("state");
  const places = new Map();
  for (const place of document.querySelectorAll("[data-live]")) {
    const name = place.dataset.live;
    places.set(name, [...(places.get(name) ?? []), place]);
  }
  if (places.size > 0) {
    const events = new EventSource(document.currentScript.dataset.events);
    events.onopen = () => { state.textContent = "Live"; };
    events.onerror = () => { state.textContent = "Not live: the connection is lost, trying again"; };
    events.onmessage = (event) => {
      for (const [name, text] of Object.entries(JSON.parse(event.data))) {
        for (const place of places.get(name) ?? []) {
          if (Array.isArray(text)) {
            place.replaceChildren(...text.map((cells) => rowOf(place, cells)));
          } else if (place.hasAttribute("points")) {
            place.setAttribute("points", text);
          } else {
            place.textContent = text;
          }
        }
      }
    };
    addEventListener("pagehide", () => events.close());
  }
}
