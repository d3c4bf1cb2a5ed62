// What all of the script uses: the looks, how numbers are written, elements, and the data block read into flat arrays.
const SVG = "http://www.w3.org/2000/svg";
const SLOT = "\u0001";
const LOOKS = JSON.parse(document.getElementById("looks").textContent);
const DEAD = LOOKS.findIndex((look) => look[0] === "dead");
const tip = document.getElementById("tip");
const MORE = 100; // rows of a table at a time
const LINKS = 12; // connections drawn while nothing is chosen

const number = (value) => value.toLocaleString("en-US");
const quantity = (value) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0, left = value;
  while (left >= 999.5 && at < units.length - 1) { left /= 1000; at += 1; }
  return at ? `${left.toFixed(left < 10 ? 2 : 1)} ${units[at]}` : `${number(value)} B`;
};
const make = (tag, css, text) => {
  const element = document.createElement(tag);
  if (css) element.className = css;
  if (text !== undefined) element.textContent = text;
  return element;
};
const draw = (tag, attributes) => {
  const element = document.createElementNS(SVG, tag);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  return element;
};
const button = (text, act, css) => {
  const element = make("button", css, text);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
};

/** What the data block says, as flat arrays: block i begins at begin[i] in file[i]. */
const decode = (data) => {
  let count = 0;
  const slots = data.templates.map((text) => text.split(SLOT).length - 1);
  for (const entry of data.files) {
    for (let at = 0; at < entry[4].length; at += 2 + slots[data.kinds[entry[4][at]][0]]) count += 1;
  }
  const model = { count, begin: new Float64Array(count), end: new Float64Array(count), kind: new Uint32Array(count),
    file: new Uint32Array(count), at: new Uint32Array(count), first: [], link: new Map(), data, slots };
  let block = 0;
  data.files.forEach((entry, file) => {
    const flat = entry[4];
    model.first.push(block);
    for (let at = 0, byte = 0; at < flat.length; block += 1) {
      const kind = data.kinds[flat[at]];
      model.begin[block] = byte + flat[at + 1];
      byte = model.end[block] = model.begin[block] + kind[5];
      model.kind[block] = flat[at];
      model.file[block] = file;
      model.at[block] = at + 2;
      at += 2 + slots[kind[0]];
    }
  });
  model.first.push(block);
  data.links.forEach((link, at) => link[4].forEach((block) => {
    if (!model.link.has(block)) model.link.set(block, []);
    model.link.get(block).push(at);
  }));
  return model;
};
