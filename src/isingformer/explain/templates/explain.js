"use strict";
(() => {
  const root = document.documentElement;
  const strength = document.getElementById("strength");
  strength.addEventListener("input", () => root.style.setProperty("--heat", strength.value / 100));

  // The slider moves every layer's strip of frames to the same one, and the mark on the course of the means.
  const frame = document.getElementById("frame");
  if (frame) {
    const steps = frame.dataset.steps.split(" ");
    const strips = document.querySelector(".strips");
    const now = document.getElementById("now");
    const show = () => {
      strips.style.setProperty("--frame", frame.value);
      document.getElementById("step").textContent = Number(steps[frame.value]).toLocaleString("en");
      frame.setAttribute("aria-valuetext", `after step ${steps[frame.value]}`);
      now.style.left = `${((Number(frame.value) + 0.5) / steps.length) * 100}%`;
    };
    frame.addEventListener("input", show);
    show();
  }

  // What folds opens for the printer.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of closed) part.open = false;
  });
})();
