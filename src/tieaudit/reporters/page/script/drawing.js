// How the map is drawn: the part of the files that is in view as rows, and over it what is marked.
class Drawing extends Blocks {
  /** The parts of files that are in view: [file, begin, end, blocks from, blocks to]. */
  parts() {
    const { level, file, group, block } = this.zoom, model = this.model;
    const whole = (at) => [at, 0, this.files[at][1], model.first[at], model.first[at + 1]];
    if (level === "all") return this.files.map((_, at) => whole(at)).slice(0, model.data.bars);
    if (level === "file") return [whole(file)];
    let low = block, high = block;
    if (level === "group") {
      const members = this.members(file, group);
      low = members[0];
      high = members[members.length - 1];
    }
    const begin = model.begin[low], end = model.end[high], edge = level === "tensor" ? (end - begin) * 0.5 : 0;
    const from = Math.max(0, begin - edge), to = Math.min(this.files[file][1], end + edge);
    return [[file, from, to, model.first[file], model.first[file + 1]]];
  }

  layout() {
    const width = this.width = Math.max(120, this.host.clientWidth);
    const parts = this.parts(), focused = document.activeElement;
    const again = this.canvas.contains(focused) ? focused.dataset.part : undefined;
    this.canvas.textContent = "";
    this.rows = [];
    const sum = parts.reduce((sum, part) => sum + part[2] - part[1], 0);
    const largest = parts.reduce((most, part) => Math.max(most, part[2] - part[1]), 1);
    const wanted = parts.length === 1 ? ({ all: 8, file: 8, group: 4, tensor: 1 })[this.zoom.level] : parts.length < 6 ? 10 : 0;
    const perRow = wanted ? Math.max(1, Math.min(largest, sum / wanted)) : largest;
    const many = parts.length > 12, tall = many ? 18 : 24;
    this.canvas.classList.toggle("many", many);
    // beside its label, as the style sheet has it
    const room = many && matchMedia("(min-width:760px)").matches ? width - 320 : width;
    parts.forEach((part, at) => this.bar(part, at, perRow, tall, room));
    if (parts.length < this.files.length && this.zoom.level === "all") {
      this.canvas.append(make("p", "soft", `and ${number(this.files.length - parts.length)} more files, in the table below`));
    }
    this.over = draw("svg", { class: "over", width, height: 1, "aria-hidden": "true" });
    this.canvas.append(this.over);
    if (again !== undefined && this.bars[again]) this.bars[again].focus({ preventScroll: true });
    this.mark();
  }

  bar(part, at, perRow, tall, width) {
    const [file, begin, end, from, to] = part;
    const bar = make("div", "bar");
    const label = make("p", "label");
    if (this.zoom.level === "all" && this.files.length > 1) {
      label.append(button(this.files[file][0], () => this.go({ level: "file", file, group: "", block: -1 }), "pick"));
    } else {
      label.append(make("bdi", "", this.files[file][0]));
    }
    const span = begin > 0 || end < this.files[file][1] ? `bytes ${number(Math.round(begin))} to ${number(Math.round(end))}` : quantity(end);
    label.append(" ", make("span", "soft", span));
    bar.append(label);
    const slider = make("div", "slider");
    slider.tabIndex = 0;
    slider.dataset.part = at;
    slider.setAttribute("role", "slider");
    slider.setAttribute("aria-label", `Tensors of ${this.files[file][0]}`);
    slider.setAttribute("aria-orientation", "horizontal");
    slider.setAttribute("aria-valuemin", 1);
    slider.setAttribute("aria-valuemax", Math.max(1, to - from));
    slider.setAttribute("aria-valuenow", 1);
    slider.setAttribute("aria-valuetext", to > from ? "arrow keys go from tensor to tensor, Enter zooms in" : "no tensors");
    slider.addEventListener("keydown", (event) => this.key(event, part));
    slider.addEventListener("focus", () => this.arrive(part));
    slider.addEventListener("blur", () => this.rest());
    if (!at) this.bars = [];
    this.bars.push(slider);
    for (let byte = begin; byte < end || byte === begin; byte += perRow) {
      const stop = Math.min(end, byte + perRow);
      const wide = Math.max(2, ((stop - byte) / perRow) * width);
      const row = draw("svg", { class: "row", width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}`, "aria-hidden": "true" });
      const scale = stop > byte ? wide / (stop - byte) : 0;
      this.rows.push({ row, file, begin: byte, end: stop, scale, tall, from, to });
      this.paint(row, byte, stop, scale, tall, from, to);
      slider.append(row);
      if (stop >= end) break;
    }
    bar.append(slider);
    this.canvas.append(bar);
  }

  /** One path per component; blocks of less than a pixel go to the component that has most of that pixel. */
  paint(row, begin, end, scale, tall, from, to) {
    const model = this.model, paths = new Map(), texts = [];
    const dimmed = this.zoom.level === "group" ? (block) => this.group(block) !== this.zoom.group
      : this.zoom.level === "tensor" ? (block) => block !== this.zoom.block : () => false;
    const put = (key, x, wide) => paths.set(key, `${paths.get(key) || ""}M${x.toFixed(1)} 0h${wide.toFixed(1)}v${tall}h-${wide.toFixed(1)}z`);
    let pixel = -1, small = null;
    const flush = () => {
      if (small) put([...small.entries()].sort((a, b) => b[1] - a[1])[0][0], pixel, 1);
      small = null;
    };
    for (let block = this.seekByte(begin, from, to); block < to && model.begin[block] < end; block += 1) {
      const x = (Math.max(begin, model.begin[block]) - begin) * scale, stop = (Math.min(end, model.end[block]) - begin) * scale;
      const what = model.data.kinds[model.kind[block]][3];
      const wide = stop - x;
      if (wide < 1) {
        if (Math.floor(x) !== pixel) { flush(); pixel = Math.floor(x); small = new Map(); }
        small = small || new Map();
        const key = what * 2 + Number(dimmed(block));
        small.set(key, (small.get(key) || 0) + wide);
        continue;
      }
      put(what * 2 + Number(dimmed(block)), x, wide > 4 ? wide - 1 : wide);
      if (wide > 46 && this.files.length < 40) texts.push([x, wide, block, what]);
    }
    flush();
    for (const [key, path] of paths) row.append(draw("path", { class: `f-${LOOKS[key >> 1][0]}${key & 1 ? " dim" : ""}`, d: path }));
    for (const [x, wide, block, what] of texts) this.word(row, x, wide, tall, block, what);
  }

  word(row, x, wide, tall, block, what) {
    const room = Math.floor((wide - 14) / 6.7);
    const parts = this.name(block).split(".").filter((part) => part !== "weight");
    let text = "";
    while (parts.length && (parts[parts.length - 1] + text).length + 1 <= room) text = parts.pop() + (text ? "." + text : "");
    if (!text || what === DEAD) text = LOOKS[what][1].length <= room ? LOOKS[what][1] : LOOKS[what][2];
    const length = text.length * 6.7 + 6;
    row.append(draw("rect", { class: what === DEAD ? "plate g-other" : `plate g-${LOOKS[what][0]}`, x: x + 4, y: 3, width: length, height: tall - 6, rx: 3 }));
    const label = draw("text", { x: x + 7, y: tall / 2 + 4 });
    label.textContent = text;
    row.append(label);
  }

  // ---- what is marked: links, the block that is meant

  /** Rectangles of a block in the canvas. */
  boxes(block) {
    const found = [], model = this.model;
    for (const one of this.rows) {
      if (one.file !== model.file[block] || model.end[block] <= one.begin || model.begin[block] >= one.end) continue;
      const x = (Math.max(one.begin, model.begin[block]) - one.begin) * one.scale;
      const stop = (Math.min(one.end, model.end[block]) - one.begin) * one.scale;
      if (one.left === undefined) {
        const box = one.row.getBoundingClientRect(), frame = this.canvas.getBoundingClientRect();
        one.left = box.left - frame.left;
        one.top = box.top - frame.top;
      }
      found.push({ x: one.left + x, y: one.top, width: Math.max(2, stop - x), height: one.tall });
    }
    return found;
  }

  mark(block = this.chosen) {
    const over = this.over, links = this.model.data.links;
    if (!over) return;
    over.textContent = "";
    const meant = block >= 0 ? this.model.link.get(block) || [] : this.letter === undefined ? [] : [this.letter];
    const active = links.map((_, at) => at).filter((at) => meant.includes(at) || at < LINKS);
    const tags = [];
    active.sort((a, b) => Number(meant.includes(a)) - Number(meant.includes(b)));
    for (const at of active) {
      const [letter, tone, sign, , blocks] = links[at];
      const faint = meant.length && !meant.includes(at) ? " faint" : "";
      const ends = [];
      for (const member of blocks.slice(0, meant.includes(at) ? 40 : 8)) {
        const boxes = this.boxes(member);
        for (const box of boxes) over.append(draw("rect", { class: `ring ${tone}${faint}`, x: box.x, y: box.y, width: box.width, height: box.height }));
        if (boxes.length) ends.push(boxes.reduce((most, box) => (box.width > most.width ? box : most)));
      }
      const middle = (box) => [Math.min(this.width - 9, Math.max(9, box.x + box.width / 2)), box.y + box.height / 2];
      ends.slice(1).forEach((box) => {
        const [x1, y1] = middle(ends[0]), [x2, y2] = middle(box);
        const bow = Math.min(60, Math.abs(y2 - y1) / 3 + 14) * (Math.max(x1, x2) > this.width - 70 ? -1 : 1);
        const path = `M${x1} ${y1}C${x1 + bow} ${y1 + (y2 - y1) / 4} ${x2 + bow} ${y2 - (y2 - y1) / 4} ${x2} ${y2}`;
        over.append(draw("path", { class: `halo${faint}`, d: path }), draw("path", { class: `mate ${tone}${faint}`, d: path }));
        tags.push([(x1 + x2) / 2 + bow * 0.75, (y1 + y2) / 2, tone, sign, faint]);
      });
      ends.forEach((box) => tags.push([...middle(box), tone, letter, faint]));
    }
    for (const [x, y, tone, text, faint] of tags) {
      const tag = draw("g", faint ? { opacity: 0.4 } : {}), wide = 8 + 8 * text.length;
      const left = Math.min(this.width - wide / 2, Math.max(wide / 2, x));
      tag.append(draw("rect", { class: `tag ${tone}`, x: left - wide / 2, y: y - 8, width: wide, height: 16, rx: 4 }));
      const word = draw("text", { x: left, y: y + 4 });
      word.textContent = text;
      tag.append(word);
      over.append(tag);
    }
    if (block >= 0) {
      for (const box of this.boxes(block)) {
        over.append(draw("rect", { class: "here", x: box.x - 1, y: box.y - 1, width: box.width + 2, height: box.height + 2 }),
          draw("rect", { class: "here in", x: box.x + 1, y: box.y + 1, width: Math.max(0, box.width - 2), height: box.height - 2 }));
      }
    }
  }
}
