/* The submit page: go to the chosen agent's form, check JSON while typing, press once. */

const chooser = document.getElementById("agent-chooser");
if (chooser) {
  chooser.querySelector("select").addEventListener("change", () => chooser.requestSubmit());
}

function checkJson(area) {
  let problem = "";
  if (area.value.trim()) {
    try {
      JSON.parse(area.value);
    } catch (error) {
      problem = `No JSON yet: ${error.message}`;
    }
  }
  area.setCustomValidity(problem);
  area.toggleAttribute("aria-invalid", Boolean(problem));
  area.title = problem;
}

document.querySelectorAll("textarea[data-json]").forEach((area) => {
  area.addEventListener("input", () => checkJson(area));
});

const form = document.getElementById("submit-form");
if (form) {
  form.addEventListener("submit", () => {
    form.querySelector("button[type=submit]").disabled = true;
  });
  // A page that comes back from the browser's cache can be pressed again.
  window.addEventListener("pageshow", () => {
    form.querySelector("button[type=submit]").disabled = false;
  });
}
