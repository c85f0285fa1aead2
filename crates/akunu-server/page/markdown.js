// ---- Markdown: blocks of lines, and inline markup

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]{0,40})/;
const ITEM = /^(\s{0,40})([-*+]|\d{1,9}[.)])\s+/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const HEADING = /^ {0,3}#{1,6}\s+/;
const DASHES = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const FORMULA = /^\s*(\$\$|\\\[)/;
const DEEPEST = 6, MOST_FORMULA_LINES = 60;

/** Cuts text into blocks {kind, text}, text with its marks. */
function blocks(text) {
  const lines = text.split("\n"), found = [];
  const table = i => lines[i].includes("|") && i + 1 < lines.length && lines[i + 1].includes("-") && lines[i + 1].includes("|") && DASHES.test(lines[i + 1]);
  /** The line after a formula that begins in a line, if it ends. */
  const formulaEnd = i => {
    const opening = lines[i].match(FORMULA), end = opening?.[1] === "$$" ? "$$" : "\\]";
    if (!opening) return 0;
    let at = lines[i].indexOf(end, opening[0].length), to = i;
    while (at < 0 && ++to < lines.length && to < i + MOST_FORMULA_LINES) at = lines[to].indexOf(end);
    return at < 0 ? 0 : to + 1;
  };
  const kind = i => !lines[i].trim() ? "" : FENCE.test(lines[i]) ? "code" : HEADING.test(lines[i]) ? "heading" : RULE.test(lines[i]) ? "rule"
    : lines[i].startsWith(">") ? "quote" : ITEM.test(lines[i]) ? "list" : table(i) ? "table" : formulaEnd(i) ? "formula" : "text";
  for (let i = 0; i < lines.length;) {
    const from = i, what = kind(i++);
    if (what === "code") {
      const fence = lines[from].match(FENCE)[1];
      while (i < lines.length && !(lines[i].trim().startsWith(fence) && !lines[i].trim().replaceAll(fence[0], ""))) i++;
      i++;
    } else if (what === "list") {
      while (i < lines.length && (kind(i) === "list" || /^\s+\S/.test(lines[i]) || (!lines[i].trim() && i + 1 < lines.length && /^(\s+\S|([-*+]|\d{1,9}[.)])\s)/.test(lines[i + 1])))) i++;
    } else if (what === "formula") {
      i = formulaEnd(from);
    } else if (what === "table") {
      while (i < lines.length && lines[i].includes("|")) i++;
    } else if (what === "quote" || what === "text") {
      while (i < lines.length && kind(i) === what) i++;
    }
    if (what) found.push({kind: what, text: lines.slice(from, i).join("\n")});
  }
  return found;
}

const INLINE = /(`{1,3})([^`]{1,1000}?)\1(?!`)|\*\*([^\s*](?:.{0,1000}?[^\s])?)\*\*|\*([^\s*](?:[^*]{0,1000}?[^\s*])?)\*|~~([^~]{1,1000}?)~~|\[([^\]\n]{1,500})\]\(([^()\s]{1,1000})\)|(https?:\/\/[^\s<>()"'`*]{1,1000}[^\s<>()"'`*.,;:!?])|\$\$([^$]{1,2000})\$\$|\\\[([^]{1,2000}?)\\\]|\\\(([^\n]{1,1000}?)\\\)|\$(?!\s)([^$\n]{0,500}[^$\n\s\\])\$(?!\d)|\\(\$)/g;

/** What stands within a line: a list of nodes and strings. */
function inline(text, depth = 0) {
  if (depth > DEEPEST) return [text];
  const nodes = [];
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    const [all, , code, bold, slanted, struck, label, target, address, shown, block, within, dollars, dollar] = match;
    nodes.push(text.slice(last, match.index));
    last = match.index + all.length;
    if (code !== undefined) nodes.push(make("code", {}, code));
    else if (bold !== undefined) nodes.push(make("strong", {}, ...inline(bold, depth + 1)));
    else if (slanted !== undefined) nodes.push(make("em", {}, ...inline(slanted, depth + 1)));
    else if (struck !== undefined) nodes.push(make("s", {}, ...inline(struck, depth + 1)));
    else if (shown ?? block) nodes.push(drawn(all, shown ?? block, true));
    else if (within ?? dollars) nodes.push(drawn(all, within ?? dollars, false));
    else if (dollar) nodes.push("$");
    else if (/^(https?:\/\/|mailto:)/i.test(target ?? address)) nodes.push(make("a", {href: target ?? address, target: "_blank", rel: "noopener noreferrer"}, label ?? address));
    else nodes.push(all);
  }
  nodes.push(text.slice(last));
  return nodes;
}

function list(text, depth) {
  const lines = text.split("\n"), indent = lines[0].match(ITEM)[1].length, items = [];
  for (const line of lines) {
    const mark = line.match(ITEM);
    if (mark && mark[1].length <= indent) items.push([line.slice(mark[0].length)]);
    else items.at(-1).push(line.replace(/^\s{1,4}/, ""));
  }
  const first = parseInt(lines[0].trim(), 10), ordered = !Number.isNaN(first);
  return make(ordered ? "ol" : "ul", ordered ? {start: first} : {}, ...items.map(item => make("li", {}, ...blocks(item.join("\n")).map(b => block(b, depth + 1)))));
}

function code(text) {
  const lines = text.split("\n"), [, fence, language] = lines[0].match(FENCE);
  const closed = lines.length > 1 && lines.at(-1).trim().startsWith(fence);
  const body = lines.slice(1, closed ? -1 : undefined).join("\n");
  const bar = make("div", {className: "bar"}, make("span", {}, language || "code"), copier(() => body, "Copy"));
  return make("div", {className: "code"}, bar, make("pre", {tabIndex: 0}, make("code", {}, ...coloured(body, language ?? ""))));
}

function table(text) {
  const cells = line => line.trim().replace(/^\||\|$/g, "").split("|");
  const [head, , ...rows] = text.split("\n");
  const row = (tag, line) => make("tr", {}, ...cells(line).map(cell => make(tag, {}, ...inline(cell.trim()))));
  return make("div", {className: "wide", tabIndex: 0, role: "group", ariaLabel: "Table"}, make("table", {}, make("thead", {}, row("th", head)), make("tbody", {}, ...rows.map(line => row("td", line)))));
}

function block({kind, text}, depth = 0) {
  if (depth > DEEPEST) return make("p", {}, text);
  switch (kind) {
    case "code": return code(text);
    case "heading": return make("h3", {}, ...inline(text.replace(HEADING, "")));
    case "rule": return make("hr");
    case "quote": return make("blockquote", {}, ...blocks(text.replace(/^> ?/gm, "")).map(b => block(b, depth + 1)));
    case "list": return list(text, depth);
    case "table": return table(text);
    default: return make("p", {}, ...inline(text));
  }
}

/** Shows text in an element; blocks that did not change since the last time stay as they are. */
function render(element, text) {
  const before = element.blocks ?? [], now = blocks(text);
  now.forEach((b, i) => {
    if (before[i]?.kind === b.kind && before[i].text === b.text) return;
    const made = block(b);
    if (element.children[i]) element.children[i].replaceWith(made);
    else element.append(made);
  });
  while (element.children.length > now.length) element.lastChild.remove();
  element.blocks = now;
}
