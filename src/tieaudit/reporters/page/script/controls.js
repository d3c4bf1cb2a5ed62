// What a reader does: pointer, keyboard, zoom.
class ByteMap extends Panels {
  constructor(host, data) {
    super(data);
    this.host = host;
    this.zoom = { level: "all", file: 0, group: "", block: -1 };
    this.chosen = -1; // block under the cursor of the keyboard, or tapped
    this.found = null; // numbers of blocks that the search found
    this.width = 0;
    this.build();
  }

  build() {
    const host = this.host;
    host.textContent = "";
    const tools = make("div", "tools");
    this.crumbs = make("nav", "crumbs");
    this.crumbs.setAttribute("aria-label", `Zoom of ${host.dataset.name}`);
    this.closer = button("+", () => this.deeper());
    this.closer.setAttribute("aria-label", "Zoom in");
    this.wider = button("−", () => this.up());
    this.wider.setAttribute("aria-label", "Zoom out");
    const find = make("div", "find");
    const label = make("label", "", "Find a tensor");
    this.search = make("input");
    this.search.type = "search";
    this.search.id = `${host.id}-find`;
    this.search.autocomplete = "off";
    this.search.spellcheck = false;
    label.htmlFor = this.search.id;
    let wait = 0;
    this.search.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(() => this.seek(), 120); });
    find.append(label, this.search);
    tools.append(this.crumbs, this.wider, this.closer, find);
    this.canvas = make("div", "canvas");
    this.detail = make("div", "detail");
    this.list = make("div", "list");
    this.said = make("p", "soft");
    this.said.setAttribute("role", "status");
    host.append(tools, this.canvas, this.detail, this.said, this.list);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => this.rest());
    this.canvas.addEventListener("click", (event) => this.tap(event));
    this.canvas.addEventListener("dblclick", (event) => { if (this.under(event) >= 0) this.deeper(); });
    new ResizeObserver(() => { if (Math.abs(host.clientWidth - this.width) > 1) this.layout(); }).observe(host);
    this.show();
  }

  show() {
    this.layout();
    this.trail();
    this.tell();
    this.fill();
  }

  // ---- pointer and keyboard

  under(event) {
    const row = event.target.closest && event.target.closest("svg.row");
    const one = row && this.rows.find((one) => one.row === row);
    if (!one || !one.scale) return -1;
    const byte = one.begin + (event.clientX - row.getBoundingClientRect().left) / one.scale;
    const block = this.seekByte(byte, one.from, one.to);
    const close = (block) => block < one.to && block >= one.from && this.model.begin[block] <= byte + 2 / one.scale && this.model.end[block] >= byte - 2 / one.scale;
    return close(block) ? block : close(block - 1) ? block - 1 : -1;
  }

  hover(event) {
    if (event.pointerType === "touch") return;
    const block = this.under(event);
    if (block === this.hovered && block >= 0) return this.tipAt(event.clientX, event.clientY);
    this.hovered = block;
    if (block < 0) return this.rest();
    this.mark(block);
    this.say(block);
    this.tipAt(event.clientX, event.clientY);
  }

  rest() {
    this.hovered = -1;
    tip.hidden = true;
    this.mark();
  }

  tap(event) {
    const block = this.under(event);
    if (block < 0) return;
    this.choose(block);
    if (event.pointerType === "touch") { this.say(block); this.tipAt(event.clientX, event.clientY); }
  }

  choose(block) {
    this.chosen = block;
    this.letter = undefined;
    this.mark();
    this.tell();
    const at = this.bars.findIndex((_, index) => this.parts()[index] && this.parts()[index][0] === this.model.file[block]);
    if (at >= 0) this.announce(this.bars[at], this.parts()[at], block);
  }

  announce(slider, part, block) {
    slider.setAttribute("aria-valuenow", block - part[3] + 1);
    slider.setAttribute("aria-valuetext", this.sentence(block));
  }

  inView(part) {
    return [this.seekByte(part[1], part[3], part[4]), Math.max(part[3], this.seekByte(part[2] - 1, part[3], part[4]))];
  }

  arrive(part) {
    if (part[4] <= part[3]) return;
    const [low, high] = this.inView(part);
    if (this.chosen < low || this.chosen > Math.min(high, part[4] - 1)) this.choose(this.zoom.level === "tensor" ? this.zoom.block : low);
    this.atBlock(this.chosen);
  }

  /** The tooltip beside a block, for those who came by keyboard. */
  atBlock(block) {
    const box = this.boxes(block)[0];
    if (!box) return;
    const frame = this.canvas.getBoundingClientRect();
    this.say(block);
    this.tipAt(frame.left + box.x + Math.min(box.width / 2, 80), frame.top + box.y + box.height - 6);
  }

  key(event, part) {
    const [low, high] = this.inView(part);
    const last = Math.min(high, part[4] - 1), now = this.chosen;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (step) this.choose(Math.max(low, Math.min(last, now + step)));
    else if (event.key === "Home") this.choose(low);
    else if (event.key === "End") this.choose(last);
    else if (event.key === "Enter" || event.key === "+") this.deeper();
    else if (event.key === "Escape" || event.key === "-") {
      if (event.key === "Escape" && !tip.hidden && this.zoom.level === "all") tip.hidden = true; else this.up();
    } else return;
    event.preventDefault();
    if (step || event.key === "Home" || event.key === "End") this.atBlock(this.chosen);
  }

  say(block) {
    const facts = this.facts(block), beside = this.model.data.beside[block];
    tip.textContent = "";
    tip.append(make("b", "", facts.name));
    const lines = [[facts.component, facts.what].filter(Boolean).join(" · "), facts.size, facts.place,
      ...(beside ? [`also: ${beside.join(", ")}`] : []), ...this.ties(block)];
    for (const line of lines) tip.append(make("div", "", line));
    tip.hidden = false;
  }

  tipAt(x, y) {
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 14, document.documentElement.clientWidth - box.width - 8))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 14) : y + 18}px`;
  }

  // ---- zoom

  go(zoom) {
    Object.assign(this.zoom, zoom);
    if (this.chosen >= 0 && this.model.file[this.chosen] !== this.zoom.file && this.zoom.level !== "all") this.chosen = -1;
    if (this.zoom.level === "tensor") this.chosen = this.zoom.block;
    tip.hidden = true;
    this.found = null;
    this.show();
    const said = this.crumbNames();
    this.said.textContent = `Shown: ${said[said.length - 1]}`;
  }

  deeper() {
    const { level, file } = this.zoom;
    const block = this.chosen >= 0 ? this.chosen : this.parts()[0] ? this.parts()[0][3] : -1;
    if (block < 0 || block >= this.model.count) return;
    if (level === "all" && this.files.length > 1) this.go({ level: "file", file: this.model.file[block], group: "", block: -1 });
    else if (level === "all" || level === "file") {
      const inside = this.model.file[block] === (level === "all" ? 0 : file) ? block : this.model.first[file];
      this.go({ level: "group", file: this.model.file[inside], group: this.group(inside), block: -1 });
    } else if (level === "group") {
      const own = this.group(block) === this.zoom.group ? block : this.members(file, this.zoom.group)[0];
      this.go({ level: "tensor", block: own, file });
    }
  }

  up() {
    const { level } = this.zoom;
    if (level === "tensor") this.go({ level: "group", block: -1, group: this.group(this.zoom.block) });
    else if (level === "group") this.go({ level: this.files.length > 1 ? "file" : "all", group: "" });
    else if (level === "file") this.go({ level: "all" });
  }

  crumbNames() {
    const { level, file, group, block } = this.zoom, names = [this.files.length > 1 ? `all ${number(this.files.length)} files` : this.files[0][0]];
    if (level !== "all" && this.files.length > 1) names.push(this.files[file][0]);
    if (level === "group" || level === "tensor") names.push(group || this.group(block));
    if (level === "tensor") names.push(this.name(block));
    return names;
  }

  trail() {
    const { level } = this.zoom, names = this.crumbNames();
    const levels = this.files.length > 1 ? ["all", "file", "group", "tensor"] : ["all", "group", "tensor"];
    this.crumbs.textContent = "";
    names.forEach((name, at) => {
      if (at) {
        const mark = make("span", "soft", "›");
        mark.setAttribute("aria-hidden", "true");
        this.crumbs.append(mark);
      }
      const one = button(name, () => this.go({ level: levels[at] }));
      if (at === names.length - 1) one.setAttribute("aria-current", "true");
      this.crumbs.append(one);
    });
    this.wider.disabled = level === "all";
    this.closer.disabled = level === "tensor" || !this.model.count;
  }

  /** From a finding: its tensors in the whole map. */
  point(letter) {
    const at = this.model.data.links.findIndex((link) => link[0] === letter);
    if (at < 0) return;
    if (this.zoom.level !== "all") this.go({ level: "all" });
    this.chosen = -1;
    this.letter = at;
    this.mark();
    this.host.scrollIntoView({ block: "start" });
    if (this.model.data.links[at][4].length) this.choose(this.model.data.links[at][4][0]);
    if (this.bars[0]) (this.bars[this.parts().findIndex((part) => part[0] === this.model.file[this.chosen])] || this.bars[0]).focus({ preventScroll: true });
  }
}
