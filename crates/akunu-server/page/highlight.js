// ---- Colours of code

/** Longer code has none: it is drawn again with each piece that comes. */
const MOST_COLOURED = 50000;
const C_WORDS = "abstract as async auto await bool boolean break case catch char class const constexpr continue crate default defer delete do double dyn else enum explicit export extends extern false final finally float fn for foreach from func function go goto if impl implements import in inline instanceof int interface internal is let long loop match mod move mut namespace new nil null nullptr of operator override package private protected pub public readonly ref return self short signed sizeof static string struct super switch template this throw trait true try type typedef typename typeof undefined union unsafe unsigned use using var virtual void volatile where while with yield";
const PYTHON_WORDS = "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield";
const RUBY_WORDS = "alias and begin break case class def do else elsif end ensure false for if in module next nil not or puts raise redo require rescue retry return self super then true undef unless until when while yield";
const SHELL_WORDS = "case cd do done echo elif else esac exit export fi for function if in local read return select set shift source sudo then trap until while";
const LUA_WORDS = "and break case class data deriving do else elseif end false for function goto if import in instance let local module nil not of or repeat return then true type until where while";
const SQL_WORDS = "add all alter and as asc begin between by case check column commit create cross default delete desc distinct drop else end exists false foreign from full group having if in index inner insert into is join key left like limit not null offset on or order outer primary references right rollback select set table then true union unique update using values view when where with";

const LINE = {slashes: String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`, hash: "#[^\\n]*", dashes: "--[^\\n]*"};
const STRING = String.raw`"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?`;
const NUMBER = String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*`;

/** A grammar is one expression with a group for each colour. */
function grammar({comment, string = STRING, words = "", flags = ""}) {
  const keywords = words ? `\\b(?:${words.replaceAll(" ", "|")})\\b` : "(?!)";
  return new RegExp(`(?<comment>${comment})|(?<string>${string})|(?<number>${NUMBER})|(?<word>${keywords})|\\w+`, `g${flags}`);
}

const TEMPLATE = "`(?:[^`\\\\]|\\\\[^])*`?";
const C_LIKE = grammar({comment: LINE.slashes, words: C_WORDS, string: `${TEMPLATE}|${STRING}`});
/** A quote may begin a lifetime. */
const RUST = grammar({comment: LINE.slashes, words: C_WORDS, string: String.raw`"(?:[^"\\]|\\[^])*"?|'(?:[^'\\\n]|\\[^'\n]{1,10}|\\')'`});
/** Names of languages, as they stand after a fence. */
const GRAMMARS = new Map(Object.entries({
  "c h cc cpp c++ cs csharp dart go java javascript js jsx kotlin kt mjs objc php scala swift ts tsx typescript zig cuda metal glsl": C_LIKE,
  "rust rs": RUST,
  "python py python3 gdscript": grammar({comment: LINE.hash, words: PYTHON_WORDS, string: `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${STRING}`}),
  "ruby rb elixir crystal perl": grammar({comment: LINE.hash, words: RUBY_WORDS}),
  "bash sh shell zsh console dockerfile makefile make powershell": grammar({comment: "(?<![\\S])#[^\\n]*", words: SHELL_WORDS}),
  "yaml yml toml ini conf properties r": grammar({comment: "(?<![\\S])[#;][^\\n]*", words: "true false null yes no on off"}),
  "json jsonc json5": grammar({comment: LINE.slashes, words: "true false null"}),
  "lua haskell hs": grammar({comment: LINE.dashes, words: LUA_WORDS}),
  "sql sqlite postgresql mysql": grammar({comment: LINE.dashes, words: SQL_WORDS, flags: "i"}),
  "css scss less": grammar({comment: "\\/\\*[^]*?(?:\\*\\/|$)", words: "important media import supports keyframes from to"}),
  "html xml svg vue": /(?<comment><!--[^]*?(?:-->|$))|(?<word><\/?[\w:-]+|\/?>)|(?<string>"[^"<]*"?)/g,
  "diff patch": /^(?<string>\+[^\n]*)|^(?<number>-[^\n]*)|^(?<comment>@@[^\n]*)/gm,
}).flatMap(([names, expression]) => names.split(" ").map(name => [name, expression])));

/** Code as nodes and strings. */
function coloured(body, language) {
  const expression = GRAMMARS.get(language.toLowerCase());
  if (!expression || body.length > MOST_COLOURED) return [body];
  const nodes = [];
  let last = 0;
  for (const match of body.matchAll(expression)) {
    const colour = Object.entries(match.groups).find(([, text]) => text)?.[0];
    if (!colour) continue;
    nodes.push(body.slice(last, match.index), make("span", {className: `of-${colour}`}, match[0]));
    last = match.index + match[0].length;
  }
  nodes.push(body.slice(last));
  return nodes;
}
