"use strict";
(() => {
  const at = id => document.getElementById(id);
  const { first, rows, columns, dark } = Object.fromEntries(
    Object.entries(document.body.dataset).map(([name, value]) => [name, Number(value)]),
  );
  const MOST_BYTES = 8 * 2 ** 20;
  const STEP = 10; // networks that are added by one question, so that none takes long
  const state = { image: null, rotate: 0, blur: 0, cover: new Set(), target: null, passes: first };

  // ---- asking ----
  const told = at("told");
  const tell = (line, asking = false) => {
    if (!line && asking && !told.dataset.asking) return; // an answer takes back only what was said of questions
    told.hidden = !line;
    told.textContent = line.charAt(0).toUpperCase() + line.slice(1);
    if (asking) told.dataset.asking = "yes";
    else delete told.dataset.asking;
  };
  const reply = async request => {
    let response;
    try {
      response = await request;
    } catch {
      throw new Error("The server does not answer. Is the command still running?");
    }
    const found = await response.json();
    if (!response.ok) throw new Error(found.error);
    return found;
  };
  const post = (path, type, body) => reply(fetch(path, { method: "POST", headers: { "Content-Type": type }, body }));

  // One question is on its way at a time. What comes back is dropped where the image or the class to trace is another
  // by now; where only a slider moved on, it is shown as a frame of that move, and the last position is asked for next.
  let subject = 0, version = 0, reached = 0, running = false, slowly = false;
  const changed = ({ anew = false, keep = false, slow = false } = {}) => {
    slowly = slow;
    if (anew) subject += 1;
    if (!keep) reached = 0;
    version += 1;
    if (!running) run();
  };
  const next = () => {
    if (slowly) return Math.min(state.passes, reached + Math.max(1, Math.floor(reached / 8)));
    const step = reached === 0 ? STEP / 2 : STEP;
    return reached >= state.passes ? state.passes : Math.min(state.passes, reached + step);
  };
  const run = async () => {
    running = true;
    document.body.classList.add("busy");
    let asked = -1;
    while (state.image && (asked !== version || reached < state.passes)) {
      asked = version;
      const about = subject, passes = next();
      const question = { ...state, cover: [...state.cover], passes };
      try {
        const answer = await post("ask", "application/json", JSON.stringify(question));
        if (about !== subject) continue;
        if (asked === version) reached = passes;
        show(answer);
        tell("", true);
        if (slowly) await new Promise(done => setTimeout(done, 160));
      } catch (error) {
        if (asked !== version) continue;
        tell(error.message, true);
        break;
      }
    }
    slowly = false;
    running = false;
    document.body.classList.remove("busy");
    at("status").textContent = told.hidden ? `${at("brief").textContent}, ${at("count").textContent}` : "";
  };

  // ---- showing ----
  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const bars = at("bars");
  const bar = place => {
    if (bars.children[place]) return bars.children[place];
    const row = element("li"), track = element("span", "track");
    track.setAttribute("aria-hidden", "true");
    track.append(element("b"), element("u"));
    const number = element("span", "number");
    number.append(element("span"), " ", element("small"));
    row.append(element("span", "who"), track, number);
    bars.append(row);
    return row;
  };
  const showTile = (name, tile, picture) => {
    const figure = document.querySelector(`[data-tile="${name}"]`);
    figure.querySelector("figcaption").textContent = tile.title;
    figure.querySelector(".base").src = picture;
    const heat = figure.querySelector(".heat");
    heat.src = tile.uri;
    heat.alt = tile.alt;
    const legend = figure.querySelector(".legend"), key = figure.querySelector(".key");
    legend.hidden = !tile.ends;
    key.hidden = !tile.key;
    if (tile.ends) {
      const [low, colours, high] = legend.children;
      [low.textContent, high.textContent] = tile.ends;
      colours.className = tile.scale;
      legend.setAttribute("aria-label", `${tile.title}: colours from ${tile.ends[0]} to ${tile.ends[1]}`);
    } else {
      key.replaceChildren(...tile.key.map(([side, word, count]) => {
        const row = element("li");
        row.append(element("i", side), `${word} `, element("span", "quiet", count));
        return row;
      }));
    }
  };
  const showCourse = answer => {
    const last = answer.course.at(-1)[0];
    const x = t => (last > 1 ? (100 * (t - 1)) / (last - 1) : 0);
    const line = at => answer.course.map(row => `${x(row[0])},${100 - 100 * row[at]}`);
    const end = last > 1 ? [] : [`100,${100 - 100 * answer.course[0][1]}`];
    at("course").querySelector("polyline").setAttribute("points", [...line(1), ...end].join(" "));
    at("course").querySelector("polygon").setAttribute("points", [...line(3), ...line(2).reverse()].join(" "));
    at("course-of").textContent = answer.traced;
    at("course-end").textContent = `t = ${last}`;
  };
  let patches = [], reading = null;
  const show = answer => {
    at("picture").src = answer.picture;
    answer.bars.forEach((row, place) => {
      const [who, track, number] = bar(place).children;
      who.textContent = row.name;
      who.classList.toggle("likely", row.name === answer.likely.name);
      const [mean, interval] = track.children;
      mean.className = row.traced ? "traced" : "";
      mean.style.width = `${row.width}%`;
      interval.style.left = `${row.left}%`;
      interval.style.width = `${row.reach}%`;
      [number.children[0].textContent, number.children[1].textContent] = [row.mean, row.ends];
    });
    const [total, ...parts] = answer.uncertainty;
    for (const part of parts) document.querySelector(`.split .${part.name}`).style.width = `${part.width}%`;
    at("parts").replaceChildren(...[...parts, total].map(part => {
      const row = element("li");
      if (part !== total) row.append(element("i", part.name));
      row.append(`${part.name} ${part.nats}`);
      return row;
    }));
    at("truth").textContent = answer.label === null ? "" : `labelled ${answer.label}`;
    for (const group of ["attention", "relevance"]) {
      answer[group]?.forEach((tile, place) => showTile(`${group}-${place}`, tile, answer.picture));
    }
    if (at("traced")) at("traced").textContent = answer.traced;
    showCourse(answer);
    patches = answer.patches;
    if (reading !== null) read(reading);
    at("brief").textContent = `${answer.likely.name}: ${answer.likely.mean} (${answer.likely.ends})`;
    at("count").textContent = `T = ${answer.passes}`;
  };

  // ---- the image: pick ----
  const choose = image => {
    state.image = image;
    tell("");
    changed({ anew: true });
  };
  let start = 0, gallery = 0;
  const look = async (choosing = false) => {
    const mine = ++gallery;
    const asked = new URLSearchParams({ set: at("set").value, start });
    if (at("label").value) asked.set("label", at("label").value);
    try {
      const found = await reply(fetch(`gallery?${asked}`));
      if (mine !== gallery) return;
      const pick = (button, one) => {
        for (const other of at("thumbs").children) other.setAttribute("aria-pressed", other === button);
        choose({ set: at("set").value, index: one.index });
      };
      at("thumbs").replaceChildren(...found.images.map(one => {
        const button = element("button"), picture = element("img");
        button.type = "button";
        button.title = one.label;
        picture.src = one.uri;
        picture.alt = `${one.label}, image ${one.index}`;
        button.append(picture);
        const chosen = state.image?.set === at("set").value && state.image.index === one.index;
        button.setAttribute("aria-pressed", chosen);
        button.addEventListener("click", () => pick(button, one));
        return button;
      }));
      const last = Math.min(found.total, start + found.step);
      at("where").textContent = found.total ? `${start + 1} to ${last} of ${found.total}` : "none";
      at("before").disabled = start === 0;
      at("after").disabled = last >= found.total;
      at("before").onclick = () => turn(Math.max(0, start - found.step));
      at("after").onclick = () => turn(start + found.step);
      if (choosing && found.images.length) at("thumbs").firstChild.click();
    } catch (error) {
      tell(error.message);
    }
  };
  const turn = place => {
    start = place;
    look();
  };
  if (at("set")) {
    const classes = () => {
      const names = JSON.parse(at("set").selectedOptions[0].dataset.classes);
      const every = element("option", "", "all");
      every.value = "";
      at("label").replaceChildren(every, ...names.map((name, number) => {
        const option = element("option", "", name);
        option.value = number;
        return option;
      }));
    };
    at("set").addEventListener("change", () => { classes(); turn(0); });
    at("label").addEventListener("change", () => turn(0));
    classes();
    look(true);
  }

  // ---- the image: draw and upload ----
  let sent = 0;
  const send = async (blob, named = false) => {
    const mine = ++sent;
    at("was").textContent = "";
    if (blob.size > MOST_BYTES) {
      tell(`The image is too large (${(blob.size / 2 ** 20).toFixed(1)} MB); expected at most 8 MB.`);
      return;
    }
    try {
      const found = await post("fit", "application/octet-stream", blob);
      if (mine !== sent) return;
      if (named) at("was").textContent = `${blob.name} is ${found.was}.`;
      choose({ pixels: found.pixels });
    } catch (error) {
      if (mine === sent) tell(error.message);
    }
  };
  if (at("paper")) {
    const paper = at("paper"), pen = paper.getContext("2d");
    const wipe = () => {
      pen.fillStyle = dark ? "#000" : "#fff";
      pen.fillRect(0, 0, paper.width, paper.height);
    };
    const place = event => {
      const box = paper.getBoundingClientRect();
      return [((event.clientX - box.left) * paper.width) / box.width, ((event.clientY - box.top) * paper.height) / box.height];
    };
    let stroke = null;
    const draw = event => {
      const [x, y] = place(event);
      Object.assign(pen, { strokeStyle: at("ink").value, lineWidth: Number(at("brush").value), lineCap: "round", lineJoin: "round" });
      pen.beginPath();
      pen.moveTo(...(stroke || [x, y]));
      pen.lineTo(x, y);
      pen.stroke();
      stroke = [x, y];
    };
    paper.addEventListener("pointerdown", event => {
      paper.setPointerCapture(event.pointerId);
      draw(event);
    });
    paper.addEventListener("pointermove", event => { if (stroke) draw(event); });
    for (const end of ["pointerup", "pointercancel"]) {
      paper.addEventListener(end, () => {
        if (stroke) paper.toBlob(blob => send(blob), "image/png");
        stroke = null;
      });
    }
    at("wipe").addEventListener("click", () => { wipe(); paper.toBlob(blob => send(blob), "image/png"); });
    wipe();

    const drop = at("drop"), file = at("file");
    file.addEventListener("change", () => { if (file.files.length) send(file.files[0], true); });
    drop.addEventListener("dragover", event => { event.preventDefault(); drop.classList.add("over-it"); });
    drop.addEventListener("dragleave", () => drop.classList.remove("over-it"));
    drop.addEventListener("drop", event => {
      event.preventDefault();
      drop.classList.remove("over-it");
      if (event.dataTransfer.files.length) send(event.dataTransfer.files[0], true);
    });
  }
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, place) => {
    const open = () => {
      for (const other of tabs) {
        other.setAttribute("aria-selected", other === tab);
        other.tabIndex = other === tab ? 0 : -1;
        at(other.getAttribute("aria-controls")).hidden = other !== tab;
      }
      tell("");
    };
    tab.type = "button";
    tab.addEventListener("click", open);
    tab.addEventListener("keydown", event => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const other = tabs[(place + move + tabs.length) % tabs.length];
      other.focus();
      other.click();
    });
  });

  // ---- changes ----
  const slider = (name, words) => {
    const say = () => {
      state[name] = Number(at(name).value);
      at(`${name}-said`).textContent = words(state[name]);
      at(name).setAttribute("aria-valuetext", words(state[name]));
    };
    at(name).addEventListener("input", () => { say(); changed(); });
    return say;
  };
  const saidOf = [slider("rotate", value => `${value}°`), slider("blur", value => `${Number(value.toFixed(2))} px`)];
  document.querySelector(".stage").style.setProperty("--rows", rows);
  document.querySelector(".stage").style.setProperty("--columns", columns);
  const cover = at("cover");
  let painting = null;
  const put = (place, on) => {
    const cell = cover.children[place];
    if (on === state.cover.has(place)) return;
    if (on) state.cover.add(place);
    else state.cover.delete(place);
    cell.setAttribute("aria-pressed", on);
    changed();
  };
  const read = place => {
    reading = place;
    const words = patches[place] ? `: ${patches[place]}` : "";
    at("patch").textContent = `Row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}${words}`;
  };
  const under = event => {
    const box = cover.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return column >= 0 && column < columns && row >= 0 && row < rows ? row * columns + column : null;
  };
  for (let place = 0; place < rows * columns; place += 1) {
    const cell = element("button");
    cell.type = "button";
    cell.tabIndex = place ? -1 : 0;
    cell.setAttribute("aria-pressed", "false");
    cell.setAttribute("aria-label", `Cover row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}`);
    cell.addEventListener("focus", () => read(place));
    cell.addEventListener("click", event => { if (event.detail === 0) put(place, !state.cover.has(place)); }); // keys
    cell.addEventListener("keydown", event => {
      const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
      const sideways = Math.abs(move) === 1 && Math.floor((place + move) / columns) !== Math.floor(place / columns);
      const other = cover.children[place + move];
      if (!move || !other || sideways) return;
      event.preventDefault();
      cell.tabIndex = -1;
      other.tabIndex = 0;
      other.focus();
    });
    cover.append(cell);
  }
  cover.addEventListener("pointerdown", event => {
    const place = under(event);
    if (place === null) return;
    event.preventDefault();
    cover.setPointerCapture(event.pointerId);
    painting = !state.cover.has(place);
    put(place, painting);
  });
  cover.addEventListener("pointermove", event => {
    const place = under(event);
    if (place === null) return;
    read(place);
    if (painting !== null) put(place, painting);
  });
  for (const end of ["pointerup", "pointercancel"]) cover.addEventListener(end, () => { painting = null; });
  const uncover = () => {
    state.cover.clear();
    for (const cell of cover.children) cell.setAttribute("aria-pressed", "false");
    changed();
  };
  at("uncover").addEventListener("click", uncover);
  at("reset").addEventListener("click", () => {
    at("rotate").value = at("blur").value = 0;
    for (const say of saidOf) say();
    uncover();
  });

  // ---- T, the class to trace, the colours ----
  at("passes").addEventListener("input", () => {
    state.passes = Number(at("passes").value);
    at("passes-said").textContent = state.passes;
    reached = Math.min(reached, state.passes);
    changed({ keep: true });
  });
  at("watch").addEventListener("click", () => changed({ slow: true }));
  at("target")?.addEventListener("change", () => {
    state.target = at("target").value === "" ? null : Number(at("target").value);
    changed({ anew: true });
  });
  at("strength")?.addEventListener("input", () => {
    document.documentElement.style.setProperty("--heat", at("strength").value / 100);
  });
})();
