// Puts the texts that the server sends where the page shows them, as text, never as markup.
"use strict";
{
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
          if (place.hasAttribute("points")) {
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
