"""Conversations about the tales: somebody asks for stories and asks about them, Akunu answers.

What is asked about a story is only what its text tells: each answer in
`facts` looks for its evidence first. `chat.tale` has the words.
"""

import random
import re

from . import lexicon
from .tales import Grammar, Person, Story, Thing, _made_up_name, plural
from .topics import TOPICS

Message = dict[str, str]

GOOD_MOODS = ["happy", "fine", "glad", "in a good mood", "cheerful", "well"]
BAD_MOODS = ["sad", "tired", "bored", "sick", "lonely", "angry", "worried", "cold", "hungry"]
ODD_PLURALS = {"mouse", "deer", "wolf", "crow"}
SENTENCE = re.compile(r'(?<=[.!?]) (?=["A-Z])|(?<=[.!?]") (?=["A-Z])')
LONGEST = 6000  # characters in a conversation: about 1,800 tokens


def with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def called(person: Person) -> str:
    return person.name or f"the {person.kind}"


def names_in(story: Story) -> list[Person]:
    """Everybody whom the text mentions, the hero first."""
    people = [p for p in story.roles.values() if isinstance(p, Person) and p.kind != "elder"]
    people += [p for p in story.roles.values() if isinstance(p, Person) and p.kind == "elder"]
    return [p for p in people if re.search(rf"\b{re.escape(called(p))}\b", story.text, re.IGNORECASE)]


def has(story: Story, words: str) -> bool:
    return re.search(rf"\b{re.escape(words)}\b", story.text, re.IGNORECASE) is not None


class Talk:
    """One conversation in the making."""

    def __init__(self, grammar: Grammar, rng: random.Random):
        self.grammar, self.rng = grammar, rng
        self.messages: list[Message] = []
        self.persona = "Akunu"
        self.user: str | None = None
        self.story: Story | None = None
        self.offer: str | None = None  # "any", or the kind of animal that was offered

    # ---- saying ----

    def line(self, rule: str, **roles: str) -> str:
        return self.grammar.say(rule, self.rng, **roles)

    def turn(self, asked: str, answer: str) -> None:
        if self.rng.random() < 0.35:
            asked = asked[0].lower() + asked[1:] if self.rng.random() < 0.4 else asked.lower()
        if self.rng.random() < 0.25:
            asked = asked.rstrip(".?!")
        self.messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        self.offer = "any" if re.search(r"(Shall I tell|Would you like to hear)", answer) else None

    def simple(self, asked: str, answer: str, **roles: str) -> None:
        """A turn whose two rules may use the same roles."""
        self.turn(self.line(asked, **roles), self.line(answer, **roles))

    # ---- stories ----

    def tell(self, asked: str, story: Story) -> None:
        lead = self.line("lead") + " " if self.rng.random() < 0.2 else ""
        self.turn(asked, lead + story.text)
        self.story = story

    def any_story(self) -> Story:
        while not names_in(story := self.grammar.told(self.rng)):
            pass
        return story

    def story_with(self, fits) -> Story | None:
        """A story that fits, if one comes up soon enough."""
        return next((s for s in (self.any_story() for _ in range(300)) if fits(s)), None)

    def subjects(self, story: Story) -> list[str]:
        """What one could have asked for to get this story."""
        people = names_in(story)
        out = []
        for person in people[:2]:
            kind = with_article(person.kind)
            if person.kind != "elder" and (person.kind in ("boy", "girl") or has(story, person.kind)):
                out += [kind, kind] + ([f"{kind} [named|called] {person.name}"] if person.name else [])
                if has(story, f"{person.trait} {person.kind}"):
                    out.append(with_article(f"{person.trait} {person.kind}"))
            if person.name and person.kind in ("boy", "girl") + tuple(a["kind"] for a in lexicon.ANIMALS):
                out.append(person.name)
        pair = [p for p in people if p.kind != "elder"][:2]
        if len(pair) == 2:
            out.append(" and ".join(p.name or with_article(p.kind) for p in pair))
        for thing in story.roles.values():
            if isinstance(thing, Thing) and has(story, f"{thing.adjective} {thing.noun}"):
                out += [with_article(thing.noun), with_article(f"{thing.adjective} {thing.noun}")]
        return out + [TOPICS[story.tale]] * 3

    def ask_for_story(self) -> None:
        rng, story = self.rng, self.any_story()
        again = self.story is not None
        if rng.random() < 0.3:
            return self.tell(self.line("ask_another" if again and rng.random() < 0.7 else "ask_story"), story)
        subject = rng.choice(self.subjects(story))
        subject = subject.replace("[named|called]", rng.choice(["named", "called"]))
        self.tell(self.line("ask_another_of" if again and rng.random() < 0.4 else "ask_story_of", X=subject), story)

    def story_of_me(self) -> None:
        me = self.user
        story = self.story_with(lambda s: s.roles["A"].kind in ("boy", "girl"))
        if me is None or story is None or has(story, me):
            return self.ask_for_story()
        text = re.sub(rf"\b{story.roles['A'].name}\b", me, story.text)
        story.roles["A"].name = me
        self.tell(self.line("ask_story_of", X="me"), Story(story.tale, story.roles, text))

    def go_on(self) -> None:
        story = self.any_story()
        sentences = SENTENCE.split(story.text)
        cut = self.rng.choice([1, 1, 2, 3])
        if len(sentences) > cut + 2:
            said, rest = " ".join(sentences[:cut]), " ".join(sentences[cut:])
            self.turn(self.line("ask_continue", S=said), rest)
            self.story = story

    def take_offer(self) -> None:
        if self.rng.random() < 0.15:
            return self.simple("no", "after_no")
        kind = self.offer
        story = self.any_story()
        if kind != "any":
            story = self.story_with(lambda s: any(p.kind == kind for p in names_in(s)[:2])) or story
        self.tell(self.line("yes"), story)

    # ---- questions about the story that was told last ----

    def introduced(self, person: Person) -> str:
        kind = f"{person.trait} {person.kind}"
        if not has(self.story, kind):
            kind = person.kind
        if person.kind not in ("boy", "girl") and not has(self.story, kind):
            return person.name
        return with_article(kind) + (f" called {person.name}" if person.name else "")

    def facts(self) -> list[tuple[str, str, dict[str, str]]]:
        """(question, answer, roles) for all that the text tells."""
        story = self.story
        people = names_in(story)
        hero = people[0]
        name = called(hero)
        facts = [("ask_end", "tell_end", {"S": SENTENCE.split(story.text)[-1]}),
                 ("ask_begin", "tell_begin", {"S": SENTENCE.split(story.text)[0]}),
                 ("ask_about", "tell_about", {"N": name, "T": TOPICS[story.tale]}),
                 ("ask_like", "tell_like", {"N": name}), ("ask_true", "tell_true", {"N": name})]
        facts += [("ask_who", "tell_who", {"I": self.introduced(hero)})] * 3
        others = [called(p) for p in people if p is not hero][:3]
        listed = " and ".join([", ".join(others[:-1])] * (len(others) > 1) + others[-1:])
        facts += [("ask_others", "tell_others", {"N": name, "L": listed}) if others else
                  ("ask_others", "tell_alone", {"N": name})] * 2
        for p in people:
            n = called(p)
            if p.kind in ("boy", "girl"):
                facts.append(("ask_child", "tell_child", {"N": n, "K": p.kind}))
            elif p.facts and has(story, p.kind):
                if p.name:
                    facts += [("ask_name", "tell_name", {"K": p.kind, "N": n})] * 2
                    facts.append(("ask_kind", "tell_kind", {"N": n, "K": p.kind}))
                else:
                    facts.append(("ask_name", "tell_nameless", {"K": p.kind}))
            if has(story, f"{p.trait} {p.kind}"):
                facts.append(("ask_trait", "tell_trait", {"N": n, "T": p.trait}))
        if hero.facts.get("home") and has(story, "lived in " + hero.facts["home"]):
            facts.append(("ask_home", "tell_home", {"N": name, "H": hero.facts["home"]}))
        if hero.facts.get("food") and re.search(rf"\b(loved|liked|ate) {hero.facts['food']}\b", story.text):
            facts.append(("ask_food", "tell_food", {"N": name, "F": hero.facts["food"]}))
        for thing in story.roles.values():
            if isinstance(thing, Thing) and has(story, f"{thing.adjective} {thing.noun}"):
                color = thing.adjective in lexicon.COLORS
                pair = ("ask_color", "tell_color") if color else ("ask_look", "tell_look")
                facts += [(*pair, {"O": thing.noun, "C": thing.adjective})] * 2
        kind = self.rng.choice([a["kind"] for a in lexicon.ANIMALS] + [p.kind for p in people if p.kind != "elder"] * 8)
        if not (kind in ("boy", "girl") and not has(story, kind)):
            facts += [("ask_there", "tell_there" if has(story, kind) else "tell_not_there", {"K": kind})] * 2
        return facts

    def ask_fact(self) -> None:
        if self.story is None:
            question = self.rng.choice(["ask_end", "ask_begin", "ask_about", "ask_who", "ask_like"])
            return self.turn(self.line(question, N="it"), self.line("no_story_yet"))
        asked, answer, roles = self.rng.choice(self.facts())
        self.simple(asked, answer, **roles)

    # ---- everything else ----

    def greet(self) -> None:
        again = any(m["role"] == "user" for m in self.messages)
        self.turn(self.line("hello_user"), self.line("hello_again") if again else self.line("hello", P=self.persona))

    def give_name(self) -> None:
        rng = self.rng
        self.user = _made_up_name(rng) if rng.random() < 0.4 else rng.choice(lexicon.BOYS + lexicon.GIRLS)
        self.simple("name_user", "name_nice", N=self.user)

    def ask_name(self) -> None:
        self.turn(self.line("ask_my_name"), self.line("tell_my_name", N=self.user) if self.user else self.line("tell_no_name"))

    def mood(self) -> None:
        good = self.rng.random() < 0.4
        mood = self.rng.choice(GOOD_MOODS if good else BAD_MOODS)
        self.simple("feel_user", "feel_good" if good else "feel_bad", M=mood)

    def liking(self) -> None:
        kind = self.rng.choice([a["kind"] for a in lexicon.ANIMALS if a["kind"] not in ODD_PLURALS])
        self.simple("like_user", "like_offer", K=plural(kind), a=kind)
        self.offer = kind

    def other(self) -> None:
        rng = self.rng
        word = rng.choice([_made_up_name(rng), rng.choice(lexicon.BOYS + lexicon.GIRLS)])
        self.turn(self.line("other_user", N=word, n=str(rng.randrange(100)), m=str(rng.randrange(100))), self.line("other_answer"))

    def self_question(self) -> None:
        match self.rng.randrange(4):
            case 0:
                self.turn(self.line("ask_self"), self.line("tell_self", P=self.persona))
            case 1:
                self.simple("ask_can", "tell_can")
            case 2:
                self.simple("ask_how", "tell_how")
            case 3:
                self.simple("ask_favorite", "tell_favorite")

    def opinion(self) -> None:
        if self.story and self.rng.random() < 0.75:
            self.simple("praise_user", "praise_answer")
        elif self.story:
            self.simple("blame_user", "blame_answer")
        else:
            self.simple("thanks_user", "thanks_answer")


def conversation(grammar: Grammar, rng: random.Random) -> list[Message]:
    talk = Talk(grammar, rng)
    match rng.random():
        case r if r < 0.12:
            talk.persona = _made_up_name(rng) if rng.random() < 0.5 else rng.choice(lexicon.PET_NAMES + lexicon.GIRLS + lexicon.BOYS)
            talk.messages.append({"role": "system", "content": talk.line("system", P=talk.persona)})
        case r if r < 0.24:
            talk.messages.append({"role": "system", "content": talk.line("system_plain")})
    if rng.random() < 0.3:
        talk.greet()
    for _ in range(rng.choice([1, 2, 3, 4, 5, 6, 8, 10, 12])):
        if sum(len(m["content"]) for m in talk.messages) > LONGEST:
            break
        if talk.offer and rng.random() < 0.75:
            talk.take_offer()
        elif talk.story is not None and rng.random() < 0.6:
            talk.ask_fact()
        else:
            rng.choices(
                [talk.ask_for_story, talk.ask_fact, talk.go_on, talk.other, talk.self_question, talk.opinion, talk.give_name,
                 talk.ask_name, talk.mood, talk.liking, talk.greet, talk.story_of_me],
                [9, 0.5, 2, 2, 1.5, 1.5, 1, 1, 0.7, 0.7, 0.3, 0.8])[0]()
    if rng.random() < 0.25:
        talk.simple("thanks_user", "thanks_answer")
    if rng.random() < 0.2:
        talk.simple("bye_user", "bye_answer")
    return talk.messages
