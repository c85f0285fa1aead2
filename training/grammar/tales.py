"""Turns the `*.tale` files into stories.

A tale file holds *rules* and *tales*. Lines starting with `#` are comments.

    rule sad X              a phrase used by many tales, with its roles
    - {X} felt sad.         one alternative a line

    tale lost               one plot
    with A=hero o=toy       what it binds, in order (see `BINDERS`)
    beat                    a step of the plot: one alternative is taken
    - {A} had {o.a}.
    beat 0.5                a step that happens half of the time
    - <sad A>

Inside a line: `{A}` the bound thing, `{A.he}` one of its forms, `[a|b|c]` a
choice (it nests), `<sad A>` a rule. Sentences are capitalised and `a` becomes
`an` afterwards, so that a line need not know what it starts with. `^` asks
for a capital where that is not plain (a new sentence after `!"`), and `*`
after a quotation mark for none (a quotation that goes on).
"""

import random
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from . import lexicon

HERE = Path(__file__).parent


# ---- things that a tale binds: each gives its text through `form(name, rng)` ----


class Word:
    """A plain noun or phrase."""

    def __init__(self, text: str):
        self.text = text

    def form(self, name: str, rng: random.Random) -> str:
        match name:
            case "":
                return self.text
            case "a":
                return f"a {self.text}"
            case "the":
                return f"the {self.text}"
            case "s":
                return plural(self.text)
        raise KeyError(name)


class Thing(Word):
    """A noun that keeps one adjective for the whole story."""

    def __init__(self, noun: str, adjective: str):
        self.noun, self.adjective = noun, adjective
        super().__init__(noun)

    def form(self, name: str, rng: random.Random) -> str:
        match name:
            case "a":
                return f"a {self.adjective} {self.noun}"
            case "the":
                return f"the {self.noun}" if rng.random() < 0.6 else self.form("full", rng)
            case "full":
                return f"the {self.adjective} {self.noun}"
            case "adj":
                return self.adjective
            case "both":
                return f"{self.adjective} {self.noun}"
        return super().form(name, rng)


class Row:
    """A row of a table: its forms are its columns."""

    def __init__(self, cells: dict[str, str]):
        self.cells = cells

    def form(self, name: str, rng: random.Random) -> str:
        return self.cells[name]


class Person:
    """A child, an animal or an elder; keeps name, kind and pronouns apart."""

    def __init__(self, name: str, kind: str, trait: str, female: bool, facts: dict[str, str]):
        self.name, self.kind, self.trait, self.female, self.facts = name, kind, trait, female, facts
        self.known = False  # whether the story has mentioned them

    def subject(self, rng: random.Random) -> str:
        """The name, or what stands for it; a first mention introduces an animal, and sometimes a child."""
        if not self.known:
            self.known = True
            if self.kind not in ("boy", "girl") or rng.random() < 0.25:
                return self.introduction(rng)
        if self.name:
            return self.name
        return f"the {self.trait} {self.kind}" if rng.random() < 0.35 else f"the {self.kind}"

    def introduction(self, rng: random.Random) -> str:
        named = rng.choice(["named", "named", "called"]) + " " + self.name if self.name else ""
        return f"a {self.trait} {self.kind} {named}".rstrip()

    def form(self, name: str, rng: random.Random) -> str:
        if name == "intro" and not self.known:
            self.known = True
            return self.introduction(rng)
        if name in ("first", "being"):
            self.known = True
        match name:
            case "" | "intro":
                return self.subject(rng)
            case "x":  # the name or the pronoun, as a subject
                return self.subject(rng) if not self.known or rng.random() < 0.4 else self.form("he", rng)
            case "s":
                return self.subject(rng) + "'s"
            case "he":
                return "she" if self.female else "he"
            case "him":
                return "her" if self.female else "him"
            case "his":
                return "her" if self.female else "his"
            case "himself":
                return "herself" if self.female else "himself"
            case "kind":
                return self.kind
            case "call":  # how others speak to them
                return self.name.removeprefix("the ") or rng.choice([f"little {self.kind}", "my friend"])
            case "being":
                return f"{self.name or 'there'} was a {self.trait} {self.kind}"
            case "first":  # first mention as if known
                return self.name or f"the {self.trait} {self.kind}"
        return self.facts[name]


# ---- how a binder makes a thing: (rng, what is bound already, argument) ----


def _made_up_name(rng: random.Random) -> str:
    start = rng.choice(lexicon.NAME_STARTS)
    name = start if start in "AEIOU" else start + rng.choice(lexicon.NAME_VOWELS)
    for _ in range(rng.choice([1, 1, 2])):
        name += rng.choice(lexicon.NAME_MIDDLES) + rng.choice(lexicon.NAME_VOWELS)
    end = rng.choice(lexicon.NAME_ENDS)
    return name if end[:1] in ("a", "e", "i", "o", "u", "y") else name + end


def child(rng, env, _arg) -> Person:
    female = rng.random() < 0.5
    taken = {p.name for p in env.values() if isinstance(p, Person)}
    while True:
        names = lexicon.GIRLS if female else lexicon.BOYS
        name = _made_up_name(rng) if rng.random() < 0.15 else rng.choice(names)
        if name not in taken:
            break
    kind = "girl" if female else "boy"
    home = rng.choice(["a small house", "a little house by the river", "a house with a red roof", "a village", "a small town",
                       "a house near the forest", "a tall house in the city", "a little house on a hill", "a house on a farm"])
    food = rng.choice(["apples", "bread and jam", "soup", "pancakes", "cookies", "berries", "noodles", "rice"])
    went = rng.choice(["ran", "walked", "walked", "hurried", "skipped"])
    facts = {"home": home, "food": food, "went": went, "sibling": "sister" if female else "brother"}
    return Person(name, kind, rng.choice(lexicon.SIZES), female, facts)


def animal(rng, env, arg) -> Person:
    """An animal; `arg` names a list to choose its kind from."""
    kinds = getattr(lexicon, arg) if arg else None
    taken = {p.kind for p in env.values() if isinstance(p, Person)}
    names = {p.name for p in env.values() if isinstance(p, Person)}
    while (row := rng.choice(lexicon.ANIMALS))["kind"] in taken or (kinds and row["kind"] not in kinds):
        pass
    name = ""
    if rng.random() < 0.45 or "" in names:  # beside a nameless animal, the next has a name
        while not name or name in names:
            name = _made_up_name(rng) if rng.random() < 0.15 else rng.choice(lexicon.PET_NAMES)
    female = row["kind"] in lexicon.FEMALE or rng.random() < 0.5
    return Person(name, row["kind"], rng.choice(lexicon.ANIMAL_TRAITS), female, row)


def hero(rng, env, arg) -> Person:
    return child(rng, env, arg) if rng.random() < 0.6 else animal(rng, env, arg)


def friend(rng, env, arg) -> Person:
    """Someone like the hero: a child for a child, mostly."""
    like_child = env["A"].kind in ("boy", "girl")
    return child(rng, env, arg) if like_child == (rng.random() < 0.85) else animal(rng, env, arg)


def elder(rng, env, _arg) -> Person:
    """A grown-up near the hero, named by what they are to the hero."""
    hero = env["A"]
    if hero.kind in ("boy", "girl"):
        name, female = rng.choice([
            ("Mom", True), ("Dad", False), ("Grandma", True), ("Grandpa", False), ("Mom", True), ("Dad", False),
            (f"{hero.form('his', rng)} mother", True), (f"{hero.form('his', rng)} father", False),
            (f"{hero.form('his', rng)} grandmother", True), (f"{hero.form('his', rng)} grandfather", False),
            (f"{hero.form('his', rng)} big sister", True), (f"{hero.form('his', rng)} big brother", False),
            ("Aunt May", True), ("Uncle Bob", False)])
    else:
        name, female = rng.choice([
            ("the old owl", True), ("the old owl", False), ("the wise turtle", False), ("the old bear", False),
            (f"{hero.form('his', rng)} mother", True), (f"{hero.form('his', rng)} father", False),
            (f"{hero.form('his', rng)} grandmother", True), (f"Mother {hero.kind.title()}", True),
            (f"Father {hero.kind.title()}", False)])
        if hero.kind in name and name.startswith("the"):
            name, female = f"{hero.form('his', rng)} mother", True
    person = Person(name, "elder", "old", female, {})
    person.known = True
    return person


def worker(rng, env, _arg) -> Person:
    """A stranger with a trade."""
    job = rng.choice(lexicon.JOBS)
    female = job == "queen" or (job != "king" and rng.random() < 0.5)
    person = Person(f"the {job}", job, "old", female, {})
    person.known = True
    return person


def _thing(nouns: list[str], traits: list[str]):
    def bind(rng, _env, _arg) -> Thing:
        adjective = rng.choice(lexicon.COLORS) if rng.random() < 0.55 else rng.choice(traits)
        noun = rng.choice(nouns)
        return Thing(noun, "little" if adjective in noun.split() else adjective)
    return bind


def toy(rng, env, arg) -> Thing:
    pick = _thing(lexicon.SOFT_THINGS, lexicon.SOFT) if rng.random() < 0.35 else _thing(lexicon.HARD_THINGS, lexicon.HARD)
    return pick(rng, env, arg)


def word(rng, env, arg) -> Word:
    taken = {value.text for value in env.values() if isinstance(value, Word)}
    while (text := rng.choice(getattr(lexicon, arg))) in taken:
        pass
    return Word(text)


def row(rng, env, arg) -> Row:
    taken = [value.cells for value in env.values() if isinstance(value, Row)]
    while (cells := rng.choice(getattr(lexicon, arg))) in taken:
        pass
    return Row(cells)


BINDERS = {
    "child": child, "animal": animal, "hero": hero, "friend": friend, "elder": elder, "worker": worker, "toy": toy,
    "light": _thing(lexicon.LIGHT_THINGS, ["new", "pretty", "bright", "little"]),
    "found": _thing(lexicon.FOUND_THINGS, ["shiny", "old", "small", "strange", "pretty", "tiny"]),
    "word": word, "row": row,
}


# ---- templates ----


@lru_cache(maxsize=None)
def parse(text: str) -> tuple:
    """A template as a tuple of str | ("ref", name, form) | ("pick", options) | ("rule", name, args)."""
    parts: list = []
    i = 0
    while i < len(text):
        c = text[i]
        if c == "{":
            end = text.index("}", i)
            name, _, form = text[i + 1:end].partition(".")
            parts.append(("ref", name, form))
            i = end + 1
        elif c == "<":
            end = text.index(">", i)
            name, *args = text[i + 1:end].split()
            parts.append(("rule", name, tuple(args)))
            i = end + 1
        elif c == "[":
            depth, start, options = 0, i + 1, []
            while True:
                c = text[i]
                depth += (c == "[") - (c == "]")
                if (c == "|" and depth == 1) or depth == 0:
                    options.append(parse(text[start:i]))
                    start = i + 1
                i += 1
                if depth == 0:
                    break
            parts.append(("pick", tuple(options)))
        else:
            match = re.compile(r"[^{<\[]+").match(text, i)
            parts.append(match.group())
            i = match.end()
    return tuple(parts)


ASIDE = 0.07  # how often a tale stops for a sentence that fits anywhere


class Grammar:
    def __init__(self, folder: Path = HERE):
        self.rules: dict[str, tuple[list[str], list[str]]] = {}
        self.tales: dict[str, dict] = {}
        for path in sorted(folder.glob("*.tale")):
            self._read(path)

    def _read(self, path: Path) -> None:
        target: list[str] = []
        for line in path.read_text().splitlines():
            head, *rest = line.split()[:1] + line.split()[1:] if line.strip() else [""]
            if not head or head.startswith("#"):
                continue
            if head == "-":
                target.append(line[2:].strip())
            elif head == "rule":
                target = []
                self.rules[rest[0]] = (rest[1:], target)
            elif head == "tale":
                tale = self.tales[rest[0]] = {"with": [], "beats": [], "weight": float(rest[1]) if len(rest) > 1 else 1.0}
            elif head == "with":
                tale["with"] = [item.split("=") for item in rest]
            elif head == "beat":
                target = []
                tale["beats"].append((float(rest[0]) if rest else 1.0, target))
            else:
                raise ValueError(f"{path.name}: {line}")

    def render(self, template: tuple, env: dict, rng: random.Random) -> str:
        out = []
        for part in template:
            if isinstance(part, str):
                out.append(part)
            elif part[0] == "ref":
                text = env[part[1]].form(part[2], rng)
                out.append(self.render(parse(text), env, rng) if "{" in text else text)
            elif part[0] == "pick":
                out.append(self.render(rng.choice(part[1]), env, rng))
            else:
                params, lines = self.rules[part[1]]
                inner = {**env, **{p: env[a] for p, a in zip(params, part[2], strict=True)}}
                out.append("" if part[1] == "day" else "^")  # a rule is a sentence, but for `day`
                out.append(self.render(parse(rng.choice(lines)), inner, rng))
        return "".join(out)

    def story(self, rng: random.Random, name: str | None = None) -> str:
        return self.told(rng, name).text

    def told(self, rng: random.Random, name: str | None = None) -> "Story":
        names = list(self.tales)
        name = name or rng.choices(names, [self.tales[n]["weight"] for n in names])[0]
        tale = self.tales[name]
        env: dict = {}
        for role, binder in tale["with"]:
            kind, _, arg = binder.partition(":")
            env[role] = BINDERS[kind](rng, env, arg)
        lines = []
        for step, (chance, options) in enumerate(tale["beats"]):
            if step >= 3 and rng.random() < ASIDE:
                lines.append("^" + self.render(parse("<aside A>"), env, rng))
            if chance >= 1 or rng.random() < chance:
                lines.append("^" + self.render(parse(rng.choice(options)), env, rng))
        return Story(name, env, tidy(" ".join(lines)))

    def say(self, rule: str, rng: random.Random, **roles: str) -> str:
        """A line of a rule whose roles are plain phrases."""
        _, lines = self.rules[rule]
        env = {role: Word(text) for role, text in roles.items()}
        return tidy("^" + self.render(parse(rng.choice(lines)), env, rng))


class Story(NamedTuple):
    tale: str
    roles: dict
    text: str


# ---- the last touches ----

ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


def tidy(text: str) -> str:
    text = re.sub(r"\s+", " ", text).replace(" ,", ",").replace(" .", ".").strip()
    text = ARTICLE.sub(r"\1n ", text)
    # A capital after . ! ? and at the start; a speech tag after a quote ("Help!" cried Mia) stays small.
    text = re.sub(r'(^|[.!?] )([a-z])', lambda m: m.group(1) + m.group(2).upper(), text)
    text = re.sub(r'(\.") ([a-z])', lambda m: f"{m.group(1)} {m.group(2).upper()}", text)
    text = re.sub(r'(^|(?<=[ ]))"([a-z])', lambda m: f'{m.group(1)}"{m.group(2).upper()}', text)
    text = re.sub(r'\^+("?[a-z])', lambda m: m.group(1).upper(), text)
    return text.replace("*", "").replace("^", "")


def plural(noun: str) -> str:
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"
