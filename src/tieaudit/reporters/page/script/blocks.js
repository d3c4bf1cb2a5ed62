// What a block is: its name from template and numbers, its layer, its facts in words.
class Blocks {
  constructor(data) {
    this.model = decode(data);
    this.files = data.files;
  }

  kind(block) { return this.model.data.kinds[this.model.kind[block]]; }

  pieces(block) {
    const kind = this.kind(block), flat = this.files[this.model.file[block]][4], at = this.model.at[block];
    return [this.model.data.templates[kind[0]].split(SLOT), flat.slice(at, at + this.model.slots[kind[0]]), kind[4]];
  }

  name(block) {
    const [texts, numbers] = this.pieces(block);
    return texts.map((text, at) => text + (at < numbers.length ? numbers[at] : "")).join("");
  }

  /** The layer ("model.layers.12"), or the component outside of layers. */
  group(block) {
    const [texts, numbers, slot] = this.pieces(block);
    if (slot < 0) return LOOKS[this.kind(block)[3]][1];
    let name = "";
    for (let at = 0; at <= slot; at += 1) name += texts[at] + numbers[at];
    return name;
  }

  plain(block) { return this.kind(block)[1] < 0; }

  facts(block) {
    const kind = this.kind(block), look = LOOKS[kind[3]], nbytes = this.model.end[block] - this.model.begin[block];
    const what = this.plain(block) ? "" : `${this.model.data.dtypes[kind[1]]}, ${this.model.data.shapes[kind[2]]}`;
    return { name: this.name(block), what, component: look[1], css: look[0],
      place: `byte ${number(this.model.begin[block])} of ${this.files[this.model.file[block]][0]}`,
      size: `${quantity(nbytes)} (${number(nbytes)} bytes)` };
  }

  ties(block) {
    return (this.model.link.get(block) || []).map((at) => {
      const [letter, , sign, title, blocks] = this.model.data.links[at];
      const others = blocks.filter((other) => other !== block).map((other) => this.name(other));
      const shown = others.slice(0, 3).join(", ") + (others.length > 3 ? ` and ${others.length - 3} more` : "");
      return `${letter} ${sign} ${shown || "itself"} (${title})`;
    });
  }

  sentence(block) {
    const facts = this.facts(block);
    const beside = this.model.data.beside[block];
    return [facts.name, facts.component, facts.what, facts.size, facts.place,
      ...(beside ? [`also ${beside.join(", ")}`] : []), ...this.ties(block)].filter(Boolean).join("; ");
  }

  members(file, group) {
    const found = [];
    for (let block = this.model.first[file]; block < this.model.first[file + 1]; block += 1) if (this.group(block) === group) found.push(block);
    return found;
  }

  /** First block of [from, to) that ends behind the byte. */
  seekByte(byte, from, to) {
    let low = from, high = to;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.model.end[middle] <= byte) low = middle + 1; else high = middle;
    }
    return low;
  }
}
