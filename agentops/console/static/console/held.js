/* What is under the pointer, has the focus or is selected is not redrawn or moved: it waits until it is left. */

const canHover = window.matchMedia("(hover: hover)").matches;
const waiting = new Map(); // name → {places, drawing, pointed}

function hasFocus(place) {
  const active = document.activeElement;
  if (!active || active === document.body || !place.contains(active)) {
    return false;
  }
  // A box that was clicked keeps the focus, and is not what is meant; one that the keyboard leads to, to scroll it, is.
  return active.matches("a, button, input, select, textarea") || (active !== place && active.matches(":focus-visible"));
}

function isSelected(place) {
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && selection.containsNode(place, true));
}

/* A finger hovers nowhere, but presses. */
function isPointedAt(place) {
  return (canHover && place.matches(":hover")) || place.matches(":active");
}

/* Whether somebody is at work in a place. */
export function isHeld(place) {
  return isPointedAt(place) || hasFocus(place) || isSelected(place);
}

/*
 * Draw now, or once all the places are left that it would change or move; of draws of a name only the last one. The
 * pointer counts in the places, or only in those `pointed`, where it may rest on the others.
 */
export function draw(name, places, drawing, pointed = places) {
  const isAtWork = places.some((place) => place && (hasFocus(place) || isSelected(place)));
  if (isAtWork || pointed.some((place) => place && isPointedAt(place))) {
    waiting.set(name, { places, drawing, pointed });
    return;
  }
  waiting.delete(name);
  drawing();
}

function release() {
  for (const [name, { places, drawing, pointed }] of waiting) {
    draw(name, places, drawing, pointed);
  }
}

const LEAVING = ["pointermove", "pointerdown", "pointercancel", "click", "focusout", "selectionchange", "visibilitychange"];
for (const kind of LEAVING) {
  document.addEventListener(kind, () => waiting.size && requestAnimationFrame(release), { passive: true });
}
document.documentElement.addEventListener("pointerleave", () => waiting.size && requestAnimationFrame(release));
