/* A plan's page: the input is shown, checked and sent only while it is to be changed. */

const tick = document.getElementById("id_edit_input");
const input = document.getElementById("plan-input");

function apply() {
  input.disabled = !tick.checked;
  input.hidden = !tick.checked;
}

if (tick && input) {
  tick.addEventListener("change", apply);
  // Also on a page that comes back: browsers remember the tick, not what followed from it.
  window.addEventListener("pageshow", apply);
  apply();
}
