// What stands under the map: the block that is chosen, and a table of layers, tensors, or what the search found.
class Panels extends Drawing {
  /** The panel under the map: what is chosen, and where one can go from it. */
  tell() {
    const panel = this.detail, block = this.chosen;
    panel.textContent = "";
    if (block < 0) {
      panel.append(make("p", "soft", this.model.count ? "Point at a block, tap it, or use the arrow keys on a file: name, dtype, shape, offset and bytes stand here." : "No tensors are known of these files."));
      if (!this.model.data.whole) panel.append(make("p", "soft", "Small neighbours of one layer are drawn as one block: the whole list would make this page too large."));
      return;
    }
    const facts = this.facts(block), beside = this.model.data.beside[block];
    const line = make("p", "name");
    line.append(make("span", `swatch b-${facts.css}`), facts.name);
    panel.append(line, make("div", "", [facts.component, facts.what, facts.size].filter(Boolean).join(" · ")), make("div", "soft", facts.place));
    if (beside) panel.append(make("div", "", `also: ${beside.join(", ")}`));
    for (const tie of this.ties(block)) panel.append(make("div", "", tie));
    const acts = make("div", "acts"), file = this.model.file[block], group = this.group(block);
    if (this.zoom.level === "all" && this.files.length > 1) acts.append(button("Show its file", () => this.go({ level: "file", file, group: "", block: -1 })));
    if (this.zoom.level !== "group" && this.zoom.level !== "tensor") acts.append(button(`Show ${group}`, () => this.go({ level: "group", file, group, block: -1 })));
    const mates = (this.model.link.get(block) || []).flatMap((at) => this.model.data.links[at][4]).filter((other) => other !== block);
    if (mates.length) {
      acts.append(button("Go to its partner", () => {
        const next = mates.find((other) => other > block) ?? mates[0];
        if (this.zoom.level === "tensor") return this.go({ level: "tensor", file: this.model.file[next], group: this.group(next), block: next });
        if (this.zoom.level !== "all") this.go({ level: "all" });
        this.choose(next);
      }));
    }
    panel.append(acts);
  }

  // ---- the table: files, layers, tensors, or what the search found

  fill() {
    const { level, file, group } = this.zoom, model = this.model;
    this.list.textContent = "";
    if (!model.count) return;
    if (this.found) return this.tensors(this.found, `${number(this.found.length)} tensors with “${this.search.value.trim()}” in their name`);
    if (level === "group") return this.tensors(this.members(file, group), `Tensors of ${group}`);
    if (level === "tensor") return this.tensors(this.members(file, this.group(this.zoom.block)), `Tensors of ${this.group(this.zoom.block)}`);
    if (level === "all" && this.files.length > 1) return;
    const groups = new Map();
    for (let block = model.first[file]; block < model.first[file + 1]; block += 1) {
      const key = this.group(block), known = groups.get(key) || [0, 0];
      groups.set(key, [known[0] + 1, known[1] + model.end[block] - model.begin[block]]);
    }
    const rows = [...groups].map(([key, [count, nbytes]]) => [key, number(count), quantity(nbytes), `${((100 * nbytes) / this.files[file][1]).toFixed(1)} %`]);
    this.table(`Layers and other parts of ${this.files[file][0]}`, ["part", "tensors", "size", "share"], rows,
      (at) => this.go({ level: "group", file, group: rows[at][0], block: -1 }));
  }

  tensors(blocks, title) {
    const model = this.model;
    this.table(title, ["tensor", "component", "dtype and shape", "at byte", "size", "linked"], { length: blocks.length, at: (at) => {
      const block = blocks[at], facts = this.facts(block);
      const letters = (model.link.get(block) || []).map((link) => `${model.data.links[link][0]} ${model.data.links[link][2]}`).join(", ");
      return [facts.name, facts.component, facts.what, number(model.begin[block]), quantity(model.end[block] - model.begin[block]), letters];
    } }, (at) => this.go({ level: "tensor", file: model.file[blocks[at]], group: this.group(blocks[at]), block: blocks[at] }));
  }

  table(title, heads, rows, act) {
    const frame = make("div", "scroll"), table = make("table"), body = make("tbody");
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", title);
    table.append(make("caption", "", title));
    const head = make("tr"), right = ["tensors", "size", "share", "at byte"];
    for (const text of heads) {
      const cell = make("th", right.includes(text) ? "n" : "", text);
      cell.scope = "col";
      head.append(cell);
    }
    const top = make("thead");
    top.append(head);
    table.append(top, body);
    frame.append(table);
    this.list.append(frame);
    let shown = 0;
    const more = button("", () => add());
    const add = () => {
      const stop = Math.min(rows.length, shown + MORE);
      for (let at = shown; at < stop; at += 1) {
        const row = make("tr"), here = at;
        rows.at(at).forEach((text, column) => {
          const cell = make(column ? "td" : "th", right.includes(heads[column]) ? "n" : "");
          if (column) cell.textContent = text;
          else { cell.scope = "row"; cell.append(button(text, () => act(here), "pick")); }
          row.append(cell);
        });
        body.append(row);
      }
      shown = stop;
      more.hidden = shown >= rows.length;
      more.textContent = `Show ${number(Math.min(MORE, rows.length - shown))} more of ${number(rows.length)}`;
    };
    add();
    this.list.append(more);
  }

  seek() {
    const words = this.search.value.trim().toLowerCase();
    this.found = null;
    if (words) {
      this.found = [];
      for (let block = 0; block < this.model.count; block += 1) {
        if (!this.plain(block) && this.name(block).toLowerCase().includes(words)) this.found.push(block);
      }
    }
    this.said.textContent = this.found ? `${number(this.found.length)} found` : "";
    this.fill();
  }
}
