// The page: its maps begin when they come near, its buttons, its theme.
const maps = new Map();
const start = (host) => {
  if (maps.has(host.id)) return maps.get(host.id);
  const block = document.querySelector(`script[data-for="${host.id}"]`);
  const data = block && JSON.parse(block.textContent);
  if (!data || !data.files.length) return undefined;
  const made = new ByteMap(host, data);
  maps.set(host.id, made);
  return made;
};
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); start(entry.target); }
}, { rootMargin: "600px" });
const hosts = [...document.querySelectorAll(".map")];
if (hosts.length === 1) start(hosts[0]); else hosts.forEach((host) => seen.observe(host));

for (const show of document.querySelectorAll(".show")) {
  show.hidden = false;
  show.addEventListener("click", () => {
    const map = start(document.getElementById(show.dataset.map));
    if (map) map.point(show.dataset.letter);
  });
}

const theme = document.getElementById("theme"), word = theme.querySelector("span");
const themes = ["", "light", "dark"], words = ["as the system", "light", "dark"];
let now = 0;
theme.hidden = false;
theme.addEventListener("click", () => {
  now = (now + 1) % 3;
  if (themes[now]) document.documentElement.dataset.theme = themes[now]; else delete document.documentElement.dataset.theme;
  word.textContent = words[now];
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
// coming to a map by Tab scrolls to it: its tooltip stays with its block
addEventListener("scroll", () => {
  const host = document.activeElement && document.activeElement.closest(".slider") && document.activeElement.closest(".map");
  const map = host && !tip.hidden && maps.get(host.id);
  if (map && map.chosen >= 0) map.atBlock(map.chosen); else tip.hidden = true;
}, { passive: true });
