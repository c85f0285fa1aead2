// ---- Formulas: a part of TeX, as MathML, which browsers draw themselves

const SYMBOLS = {};
const symbols = text => text.trim().split(/\s+/).forEach(pair => { const [name, sign] = pair.split("="); SYMBOLS[name] = sign; });
symbols(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ pi=π
  rho=ρ sigma=σ tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Phi=Φ Psi=Ψ Omega=Ω
  infty=∞ partial=∂ nabla=∇ ell=ℓ hbar=ℏ emptyset=∅ varnothing=∅ aleph=ℵ Re=ℜ Im=ℑ angle=∠ prime=′ degree=°`);
const LETTERS = new Set(Object.keys(SYMBOLS));
symbols(`times=× cdot=⋅ div=÷ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=• oplus=⊕ otimes=⊗ cup=∪ cap=∩ setminus=∖ wedge=∧ land=∧ vee=∨ lor=∨ neg=¬ lnot=¬
  leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ ll=≪ gg=≫ approx=≈ sim=∼ simeq=≃ cong=≅ equiv=≡ propto=∝ in=∈ notin=∉ ni=∋ subset=⊂ subseteq=⊆ supset=⊃
  supseteq=⊇ to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ implies=⟹ iff=⟺ mapsto=↦ longrightarrow=⟶
  uparrow=↑ downarrow=↓ forall=∀ exists=∃ mid=∣ parallel=∥ perp=⊥ models=⊨ vdash=⊢ langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lvert=| rvert=| vert=|
  lVert=‖ rVert=‖ Vert=‖ ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ colon=: therefore=∴ because=∵ int=∫ iint=∬ oint=∮ sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂`);
const LIMITS = new Set("sum prod coprod bigcup bigcap lim max min sup inf limsup liminf argmax argmin".split(" "));
const FUNCTIONS = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker deg gcd arg Pr lim max min sup inf limsup liminf argmax argmin".split(" "));
const ACCENTS = {hat: "^", widehat: "^", bar: "¯", overline: "¯", vec: "→", dot: "˙", ddot: "¨", tilde: "~", widetilde: "~"};
const SPACES = {",": .17, ":": .22, ">": .22, ";": .28, " ": .25, quad: 1, qquad: 2, "!": -.17};
const FENCES = {matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], vmatrix: ["|", "|"], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], array: ["", ""]};
const BLACKBOARD = {C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ"};
const DEEPEST_FORMULA = 30, LONGEST_FORMULA = 4000;

function ml(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A formula's element. Throws if the text is not of the part of TeX that is known. */
function formula(text, display) {
  if (text.length > LONGEST_FORMULA) throw new Error("too long");
  const tokens = text.match(/\\[a-zA-Z]+\*?|\\[^]|\d+(?:\.\d+)?|\s+|[^]/gu) ?? [];
  let at = 0, depth = 0;
  const skip = () => { while (/^\s/.test(tokens[at] ?? "")) at++; };
  const bare = row => row.length === 1 ? row[0] : ml("mrow", {}, ...row);

  /** What stands between braces, as it is written. */
  function raw() {
    skip();
    if (tokens[at] !== "{") return tokens[at++] ?? "";
    let level = 1, written = "";
    for (at++; ; at++) {
      if (at >= tokens.length) throw new Error("no end of a group");
      level += tokens[at] === "{" ? 1 : tokens[at] === "}" ? -1 : 0;
      if (!level) { at++; return written; }
      written += tokens[at];
    }
  }
  function argument() {
    skip();
    if (at >= tokens.length) throw new Error("nothing follows");
    return atom();
  }
  /** A row up to a token that ends it, which is left. */
  function row(ends) {
    if (++depth > DEEPEST_FORMULA) throw new Error("too deep");
    const found = [];
    for (skip(); at < tokens.length && !ends.includes(tokens[at]); skip()) found.push(scripted());
    depth--;
    return found;
  }
  function closed(end) {
    const found = row([end]);
    if (tokens[at++] !== end) throw new Error(`no ${end}`);
    return found;
  }
  function scripted() {
    const name = tokens[at].slice(1), limits = display && tokens[at][0] === "\\" && LIMITS.has(name);
    const base = "^_".includes(tokens[at]) ? ml("mrow") : atom();
    let below, above, primes = "";
    for (skip(); ["\\limits", "\\nolimits"].includes(tokens[at]); skip()) at++;
    for (; ["^", "_", "'"].includes(tokens[at]); skip()) {
      const mark = tokens[at++];
      if (mark === "'") primes += "′";
      else if (mark === "^") above = argument();
      else below = argument();
    }
    if (primes) above = above ? ml("mrow", {}, ml("mo", {}, primes), above) : ml("mo", {}, primes);
    if (!below && !above) return base;
    const kind = limits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    return ml(kind[below && above ? 2 : below ? 0 : 1], {}, base, ...[below, above].filter(Boolean));
  }
  function fence(sign) { return ml("mo", {stretchy: "true", fence: "true"}, sign); }
  function delimiter() {
    skip();
    const token = tokens[at++] ?? "";
    return token === "." ? "" : token === "\\|" ? "‖" : SYMBOLS[token.slice(1)] ?? token.replace("\\", "");
  }
  function table(name) {
    const [left, right] = FENCES[name] ?? [];
    if (left === undefined) throw new Error(`${name} is not known`);
    if (name === "array") raw();
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(ml("mtd", {}, ...row(["&", "\\\\", "\\end"])));
      const token = tokens[at++];
      if (token === undefined) throw new Error(`no end of ${name}`);
      if (token === "\\\\") rows.push([]);
      if (token === "\\end") break;
    }
    if (raw() !== name) throw new Error(`no end of ${name}`);
    const side = ["cases", "aligned", "align", "align*"].includes(name) ? {class: "aligned"} : {};
    return ml("mrow", {}, ...(left ? [fence(left)] : []), ml("mtable", side, ...rows.map(cells => ml("mtr", {}, ...cells))), ...(right ? [fence(right)] : []));
  }
  function command(name) {
    if (name in SPACES) return ml("mspace", {width: `${SPACES[name]}em`});
    if (LETTERS.has(name)) return ml("mi", /^[A-Z]/.test(name) ? {mathvariant: "normal"} : {}, SYMBOLS[name]);
    if (Object.hasOwn(SYMBOLS, name)) return ml("mo", {}, SYMBOLS[name]);
    if (FUNCTIONS.has(name)) return ml("mrow", {}, ml("mi", {}, name), ml("mo", {}, "\u2061"));
    if (Object.hasOwn(ACCENTS, name)) return ml("mover", {accent: "true"}, argument(), ml("mo", {stretchy: String(/^(wide|over)/.test(name))}, ACCENTS[name]));
    switch (name) {
      case "frac": case "dfrac": case "tfrac": return ml("mfrac", {}, argument(), argument());
      case "binom": return ml("mrow", {}, fence("("), ml("mfrac", {linethickness: "0"}, argument(), argument()), fence(")"));
      case "sqrt": {
        skip();
        if (tokens[at] !== "[") return ml("msqrt", {}, argument());
        at++;
        const degree = bare(closed("]"));
        return ml("mroot", {}, argument(), degree);
      }
      case "text": case "textbf": case "textit": case "mbox": case "operatorname": case "mathrm": case "tag": {
        const written = raw();
        return name === "mathrm" || name === "operatorname" ? ml("mi", {mathvariant: "normal"}, written) : ml("mtext", {}, written);
      }
      case "mathbb": { const letter = raw(); return ml("mi", {mathvariant: "normal"}, BLACKBOARD[letter] ?? letter); }
      case "mathbf": case "boldsymbol": case "bm": return ml("mrow", {class: "bold"}, argument());
      case "mathcal": case "mathit": case "mathsf": case "boxed": return argument();
      case "displaystyle": case "textstyle": case "nonumber": return ml("mrow");
      case "underbrace": case "overbrace": return ml(name === "overbrace" ? "mover" : "munder", {}, argument(), ml("mo", {stretchy: "true"}, name === "overbrace" ? "⏞" : "⏟"));
      case "left": {
        const left = delimiter(), inside = row(["\\right"]);
        if (tokens[at++] !== "\\right") throw new Error("no \\right");
        return ml("mrow", {}, fence(left), ...inside, fence(delimiter()));
      }
      case "big": case "Big": case "bigg": case "Bigg": case "bigl": case "bigr": case "Bigl": case "Bigr": return ml("mo", {}, delimiter());
      case "begin": return table(raw());
      case "{": case "}": case "%": case "$": case "&": case "#": case "_": return ml("mo", {}, name);
      case "|": return ml("mo", {}, "‖");
      case "\\": return ml("mspace", {linebreak: "newline"});
      default: throw new Error(`\\${name} is not known`);
    }
  }
  function atom() {
    const token = tokens[at++];
    if (token[0] === "\\") {
      if (++depth > DEEPEST_FORMULA) throw new Error("too deep");
      const made = command(token.slice(1));
      depth--;
      return made;
    }
    if (token === "{") return bare(closed("}"));
    if (/^\d/.test(token)) return ml("mn", {}, token);
    if (/^\p{L}$/u.test(token)) return ml("mi", {}, token);
    if ("}&^_#".includes(token)) throw new Error(`a ${token} too many`);
    return ml("mo", {}, token === "-" ? "−" : token === "*" ? "∗" : token);
  }
  const made = row([]);
  return ml("math", display ? {display: "block"} : {}, ml("mrow", {}, ...made));
}

/** A formula, or its source if it is not of the part that is known. */
function drawn(source, text, display) {
  const block = {className: "wide formula", tabIndex: 0, role: "group", ariaLabel: "Formula"};
  try { return make(display ? "div" : "span", display ? block : {className: "formula"}, formula(text, display)); }
  catch { return make("code", {}, source); }
}
